"""Bar reports and status claims."""
