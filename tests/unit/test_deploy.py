"""The files in `deploy/` refer only to what exists: flags, ports, probes, volumes, services."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ackflow.cli.main import app
from ackflow.server.routes import all_routes

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OPEN = {route.path for route in all_routes() if route.method == "GET"}
COMMANDS: Any = typer.main.get_command(app)


def options(command: str) -> set[str]:
    """The options of a command, as they are written."""
    return {name for parameter in COMMANDS.commands[command].params for name in parameter.opts}


def check_command(arguments: list[str]) -> dict[str, str]:
    """Check that a command and its options exist; return the options with what follows them."""
    command, *rest = arguments
    given = {name: rest[at + 1] if at + 1 < len(rest) else "" for at, name in enumerate(rest)
             if name.startswith("--")}  # fmt: skip
    assert set(given) <= options(command), f"{command} has no {set(given) - options(command)}"
    return given


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_compose_file_refers_to_what_is_there() -> None:
    (compose,) = read("compose.yaml")
    services = compose["services"]
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in compose["volumes"], name
        for other in service.get("depends_on", ()):
            assert "healthcheck" in services[other], "its health is waited for"
        if "build" not in service:
            continue
        build = service["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).exists()
        given = check_command(service["command"])
        hosts = re.findall(r"@([\w-]+)/", given["--db"])
        assert hosts
        assert set(hosts) <= set(services)
        assert service["environment"]["ACKFLOW_URL"] == given["--db"]
        for port in service["ports"]:
            assert port.partition(":")[2] == given["--port"]
        probe = service["healthcheck"]["test"][-1]
        found = re.search(r"localhost:(\d+)(/\w+)", probe)
        assert found is not None
        assert (found[1], found[2] in OPEN) == (given["--port"], True)


def test_the_kubernetes_manifest_refers_to_what_is_there() -> None:
    by_kind = {one["kind"]: one for one in read("kubernetes.yaml")}
    assert set(by_kind) == {"Deployment", "Service", "PodDisruptionBudget"}
    deployment = by_kind["Deployment"]["spec"]
    template = deployment["template"]
    labels = template["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["PodDisruptionBudget"]["spec"]["minAvailable"] < deployment["replicas"]
    (container,) = template["spec"]["containers"]
    given = check_command(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert str(ports["http"]) == given["--port"]
    assert {port["targetPort"] for port in by_kind["Service"]["spec"]["ports"]} <= set(ports)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in OPEN
        assert asked["port"] in ports
    notes = template["metadata"]["annotations"]
    assert notes["prometheus.io/path"] in OPEN
    assert notes["prometheus.io/port"] == given["--port"]
    names = {variable["name"] for variable in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= names


def test_the_image_starts_a_command_that_exists() -> None:
    lines = (DEPLOY / "Dockerfile").read_text()
    command = re.search(r"^CMD (\[.*\])$", lines, re.MULTILINE)
    assert command is not None
    given = check_command(yaml.safe_load(command[1]))
    assert Path(given["--db"]).parent == Path("/var/lib/ackflow")
    extras = re.search(r"/src\[([\w,]+)\]", lines)
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in project for extra in extras[1].split(","))


UNITS = sorted((DEPLOY / "systemd").iterdir())


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    start = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert start is not None
    program, *arguments = shlex.split(start[1])
    assert program == "/opt/ackflow/bin/ackflow"
    check_command(arguments)
    if shutil.which("systemd-analyze") is None:
        return
    # The program must exist for the check, and the instance of a template needs a name.
    copy = tmp_path / unit.name.replace("@", "@test")
    copy.write_text(text.replace(program, "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    mine = [line for line in done.stderr.splitlines() if "ackflow" in line]
    assert (done.returncode, mine) == (0, []), done.stderr
