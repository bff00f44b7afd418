"""Views of grants and approvals."""
