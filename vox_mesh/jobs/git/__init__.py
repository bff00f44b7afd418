"""Jobs in git: manifests, claims and results as refs and commits of a repository."""
