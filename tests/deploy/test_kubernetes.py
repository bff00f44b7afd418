"""The Kubernetes manifests: they fit together, and what is secret or private is where it belongs."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any, Final

import pytest

from tests.deploy import command_lines, schemas
from tests.deploy.files import DEPLOY, DOCKERFILES, ROOT, SOME_TOKEN, documents, instructions
from tests.deploy.test_containers import version
from tests.deploy.test_verify import verify_command
from vox_mesh import load_settings

_FOLDER: Final = DEPLOY / "kubernetes"
_SETS: Final = {"vox-mesh": DOCKERFILES[0], "sqld": DOCKERFILES[1]}


def kustomization() -> dict[str, Any]:
    """The input of kustomize."""
    [found] = documents(_FOLDER / "kustomization.yaml")
    return found


def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """All objects, by kind and name."""
    return {
        (each["kind"], each["metadata"]["name"]): each
        for resource in kustomization()["resources"]
        for each in documents(_FOLDER / resource)
    }


def pod(name: str) -> dict[str, Any]:
    """The pods of a set."""
    spec: dict[str, Any] = objects()["StatefulSet", name]["spec"]["template"]["spec"]
    return spec


def environment(name: str) -> dict[str, Any]:
    """The variables of a set's container; what is not written out is referred to."""
    return {
        each["name"]: each.get("value", each.get("valueFrom")) for each in pod(name)["containers"][0]["env"]
    }


def test_all_files_are_named_and_all_that_are_named_are_there() -> None:
    files = {path.name for path in _FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization()["resources"]) == files
    assert ("Namespace", kustomization()["namespace"]) in objects()


def test_only_nodes_reach_the_server_and_it_reaches_no_one() -> None:
    policy = objects()["NetworkPolicy", "sqld"]["spec"]
    assert policy["podSelector"]["matchLabels"] == objects()["Service", "sqld"]["spec"]["selector"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [
        {"podSelector": {"matchLabels": objects()["Service", "vox-mesh"]["spec"]["selector"]}}
    ]
    assert policy["egress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


@pytest.mark.parametrize("name", _SETS)
def test_every_container_has_limits(name: str) -> None:
    for container in pod(name)["containers"]:
        assert {"cpu", "memory"} == set(container["resources"]["limits"])


@pytest.mark.parametrize("name", _SETS)
def test_a_set_is_whole_and_its_parts_agree(name: str) -> None:
    found = objects()["StatefulSet", name]
    schemas.check(found, schemas.STATEFUL_SET)
    spec = found["spec"]
    labels = spec["template"]["metadata"]["labels"]
    service = objects()["Service", spec["serviceName"]]["spec"]
    assert service["selector"].items() <= labels.items()
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    [container] = pod(name)["containers"]
    volumes = {each["name"] for each in pod(name)["volumes"]}
    claims = {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes | claims
    image = dict(instructions(_SETS[name]))
    assert [each["containerPort"] for each in container["ports"]] == [int(image["EXPOSE"])]
    assert [each["port"] for each in service["ports"]] == [int(image["EXPOSE"])]
    assert [each["targetPort"] for each in service["ports"]] == [container["ports"][0]["name"]]
    assert str(pod(name)["securityContext"]["runAsUser"]) == image["USER"]
    kept = {each["mountPath"] for each in container["volumeMounts"] if each["name"] in claims}
    assert kept == {image["VOLUME"]}


def test_the_log_is_verified_every_night_by_a_node_that_there_is() -> None:
    job = objects()["CronJob", "vox-mesh-verify"]
    schemas.check(job, schemas.CRON_JOB)
    spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["image"] == pod("vox-mesh")["containers"][0]["image"]
    assert container["command"][-1] in verify_command()
    assert str(spec["securityContext"]["runAsUser"]) == dict(instructions(DOCKERFILES[0]))["USER"]
    given = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    nodes = environment("vox-mesh")
    assert given["VOX_MESH_CONTROL_ADDR"] == nodes["VOX_MESH_CONTROL_ADDR"].replace(
        "$(POD_NAME)", "vox-mesh-0"
    )
    assert given["VOX_MESH_READ_TOKEN"] == nodes["VOX_MESH_READ_TOKEN"]


def test_the_images_are_those_of_this_version() -> None:
    assert {each["name"]: each["newTag"] for each in kustomization()["images"]} == {
        pod(name)["containers"][0]["image"]: version() for name in _SETS
    }


def test_nodes_keep_their_identity_and_have_good_settings() -> None:
    env = environment("vox-mesh")
    assert env.pop("POD_NAME") == {"fieldRef": {"fieldPath": "metadata.name"}}
    plain = {
        key: SOME_TOKEN if isinstance(value, dict) else value.replace("$(POD_NAME)", "vox-mesh-0")
        for key, value in env.items()
    }
    settings = load_settings(_env_file=None, enabled=True, **plain)
    assert settings.node_id == "vox-mesh-0"
    volume = dict(instructions(DOCKERFILES[0]))["VOLUME"]
    assert settings.home_dir.is_relative_to(volume)
    assert settings.db_path.is_relative_to(volume)
    assert settings.control_addr == "http://vox-mesh-0.vox-mesh:7400"
    assert settings.endpoint == "http://sqld:8080"
    command_lines.check(pod("vox-mesh")["containers"][0]["args"])


def test_probes_ask_what_they_should() -> None:
    [node] = pod("vox-mesh")["containers"]
    asked = {
        name: node[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert asked == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


def test_secrets_are_referred_to_and_made_as_the_page_says() -> None:
    assert not [each for kind, each in objects() if kind == "Secret"]
    referred = {
        value["secretKeyRef"]["key"] for value in environment("vox-mesh").values() if _is_secret(value)
    }
    [key] = [each["secret"] for each in pod("sqld")["volumes"] if "secret" in each]
    referred |= {item["key"] for item in key["items"]}
    page = (ROOT / "docs" / "guides" / "operations.md").read_text()
    [made] = re.findall(r"kubectl [^`]*?create secret generic vox-mesh((?:.*\\\n)*.*)", page)
    assert set(re.findall(r"--from-(?:literal|file)=([\w.-]+)=", made)) == referred


def _is_secret(value: Any) -> bool:
    return isinstance(value, dict) and "secretKeyRef" in value and value["secretKeyRef"]["name"] == "vox-mesh"


@pytest.mark.skipif(shutil.which("kustomize") is None, reason="kustomize is not installed")
def test_kustomize_takes_them() -> None:
    subprocess.run(["kustomize", "build", _FOLDER], check=True, capture_output=True, timeout=60)
