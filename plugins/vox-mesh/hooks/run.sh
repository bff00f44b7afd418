#!/bin/sh
# Calls the hook script for the mesh of the project. A project without a mesh is left alone.
home=${VOX_MESH_HOME:-}
if [ -z "$home" ]; then
    common=$(git -C "$CLAUDE_PROJECT_DIR" rev-parse --path-format=absolute --git-common-dir 2> /dev/null)
    case $common in
        */.git) home=${common%/.git}/.vox ;;
        *) home=$CLAUDE_PROJECT_DIR/.vox ;;
    esac
fi
if [ ! -d "$home" ] || ! command -v python3 > /dev/null; then
    echo "{}"
    exit 0
fi
exec python3 -IS "${0%/*}/vox_mesh_hook.py" claude --agent claude \
    --home "$home" --project "$CLAUDE_PROJECT_DIR" "$@"
