"""Share one replica between the processes of a home: one follows the primary, the others read its copy."""
