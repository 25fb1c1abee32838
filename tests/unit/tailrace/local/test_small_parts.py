"""State file, lock, development credentials, logs, settings of the broker, Java and Node
versions."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from tailrace.auth.issuers import load_issuers
from tailrace.auth.principal import InvalidCredential
from tailrace.auth.verification import verify
from tailrace.local import (
    banner,
    child_process,
    dev_credentials,
    hints,
    install,
    install_kafka,
    install_page,
    install_steps,
    java,
    kafka_broker,
    logs,
    models,
    paths,
    plan,
    ports,
    processes,
    readiness,
    state,
)
from tests.support import cases, waiting


def a_state(**fields: object) -> state.State:
    part = state.Part(name="supervisor", role="supervisor", pid=1, started=2)
    return state.State(run="r", supervisor=part, **fields)  # type: ignore[arg-type]


class TestState:
    def test_comes_back_as_it_was_saved(self, tmp_path: Path) -> None:
        saved = a_state(
            phase="ready",
            parts=[state.Part(name="kafka", role="kafka", pid=3, started=4, exit_code=-9)],
        )
        state.save(tmp_path / "state.json", saved)
        assert state.load(tmp_path / "state.json") == saved
        assert [file.name for file in tmp_path.iterdir()] == ["state.json"]

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"run": 7}'])
    def test_a_file_of_something_else_is_no_state(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "state.json").write_text(content)
        assert state.load(tmp_path / "state.json") is None

    def test_only_a_folder_of_its_own_is_removed_as_scratch(self, tmp_path: Path) -> None:
        """Symptom: every killed engine left its sockets in /tmp."""
        made = state.make_scratch()
        (Path(made) / "socket").touch()
        state.remove_scratch(a_state(scratch=made))
        assert not Path(made).exists()
        for other in (str(tmp_path), ""):
            state.remove_scratch(a_state(scratch=other))
        assert tmp_path.exists()

    def test_a_folder_has_one_supervisor(self, tmp_path: Path) -> None:
        lock = tmp_path / "lock"
        assert not state.is_held(lock)
        with state.hold(lock):
            assert state.is_held(lock)
            with pytest.raises(state.AlreadyRunning):
                state.hold(lock)
        assert not state.is_held(lock)


class TestDevelopmentCredentials:
    def test_are_accepted_by_the_issuers_file_beside_the_key(self, tmp_path: Path) -> None:
        data = paths.Data(tmp_path)
        token = dev_credentials.issue(data, "ada", 60)
        principal = verify(token, load_issuers(data.issuers), time.time())
        assert principal.subject == "ada"
        with pytest.raises(InvalidCredential):
            verify(
                token,
                load_issuers(data.issuers),
                time.time() + 60 + dev_credentials.LEEWAY_S + 1,
            )

    def test_the_key_is_for_its_owner_only_and_stays_the_same(self, tmp_path: Path) -> None:
        data = paths.Data(tmp_path / "data")
        dev_credentials.ensure(data)
        key = data.dev_key.read_text()
        assert stat.S_IMODE(data.dev_key.stat().st_mode) == 0o600
        assert stat.S_IMODE(data.root.stat().st_mode) == 0o700
        dev_credentials.ensure(data)
        assert data.dev_key.read_text() == key
        assert "PRIVATE" not in data.issuers.read_text()

    def test_the_page_gets_a_new_one_when_its_own_is_an_hour_old(self, tmp_path: Path) -> None:
        import os

        data = paths.Data(tmp_path)
        dev_credentials.renew_page_credential(data)
        first = data.credential.read_text()
        dev_credentials.renew_page_credential(data)
        assert data.credential.read_text() == first
        old = time.time() - dev_credentials.RENEW_AFTER_S - 1
        os.utime(data.credential, (old, old))
        dev_credentials.renew_page_credential(data)
        assert data.credential.stat().st_mtime > old + 1

    @cases.each(
        ("text", "value"),
        [("90", 90), ("90s", 90), ("15m", 900), ("1h", 3600), ("24h", 86_400), ("1d", 86_400)],
    )
    def test_lifetimes(self, text: str, value: int) -> None:
        assert dev_credentials.seconds(text) == value

    @cases.each("text", ["", "0", "-1", "1w", "25h", "2d", "1.5h", "h"])
    def test_no_lifetimes(self, text: str) -> None:
        with pytest.raises(ValueError, match="is no lifetime"):
            dev_credentials.seconds(text)


class TestLogs:
    def test_only_whole_lines_are_shown_and_each_once(self, tmp_path: Path) -> None:
        file = tmp_path / "log"
        follower = logs.Follower(file)
        assert follower.lines() == []
        file.write_bytes(b"one\ntw")
        assert follower.lines() == ["one"]
        with file.open("ab") as stream:
            stream.write("o\nthr\u00e9e\n".encode())
        assert follower.lines() == ["two", "thr\u00e9e"]
        assert follower.lines() == []

    def test_a_record_is_shown_as_a_person_reads_it(self) -> None:
        record = {
            "time": "2026-01-01T00:00:00Z",
            "level": "WARNING",
            "action": "log.lost",
            "service": "gateway",
            "reason": "no broker",
            "n": 3,
            "x": None,
        }
        assert logs.readable(json.dumps(record)) == "warning log.lost reason=no broker n=3"
        assert logs.readable('{"level": "info", "event": "started"}') == "started"

    @cases.each("line", ["Traceback (most recent call last):", "[1, 2]", "7", '{"half": '])
    def test_any_other_line_is_shown_as_it_is(self, line: str) -> None:
        assert logs.readable(line) == line


class TestBroker:
    def test_settings_name_the_ports_everywhere_and_take_additions(self, tmp_path: Path) -> None:
        text = kafka_broker.properties(1111, 2222, tmp_path, {"log.retention.hours": "1", "x": "y"})
        values = dict(line.split("=", 1) for line in text.splitlines())
        assert (
            values["listeners"]
            == values["advertised.listeners"]
            == "PLAINTEXT://127.0.0.1:1111,CONTROLLER://127.0.0.1:2222"
        )
        assert values["controller.quorum.bootstrap.servers"] == "127.0.0.1:2222"
        assert values["log.retention.hours"] == "1"
        assert values["x"] == "y"

    def test_a_cluster_id_never_reads_as_an_option(self) -> None:
        ids = {kafka_broker.cluster_id() for _ in range(500)}
        assert len(ids) == 500
        assert all(len(one) == 22 and not one.startswith("-") for one in ids)

    def test_the_classpath_is_sorted_and_explicit_and_its_absence_is_named(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(processes.StartError, match="run `make install`"):
            kafka_broker.classpath(tmp_path)
        for name in ("b.jar", "a.jar", "notes.txt"):
            (tmp_path / name).touch()
        assert kafka_broker.classpath(tmp_path) == f"{tmp_path}/a.jar:{tmp_path}/b.jar"

    def test_classes_are_kept_for_one_java_and_one_set_of_jars(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        binary, jars = tmp_path / "java", tmp_path / "jars"
        binary.touch()
        jars.mkdir()
        before = kafka_broker.class_archive(binary, jars)
        assert kafka_broker.class_archive(binary, jars) == before
        os.utime(jars, ns=(1, 1))
        other_jars = kafka_broker.class_archive(binary, jars)
        os.utime(binary, ns=(1, 1))
        assert len({before, other_jars, kafka_broker.class_archive(binary, jars)}) == 3

    def test_a_java_that_can_keep_no_classes_is_not_told_of_any(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "kafka"))
        jars = paths.jars()
        jars.mkdir(parents=True)
        (jars / "a.jar").touch()
        archive = kafka_broker.class_archive(java.find(), jars)
        archive.parent.mkdir(parents=True)

        def options() -> list[str]:
            broker = kafka_broker.Broker(tmp_path / "b", 1, 2, run="test-x", log=tmp_path / "log")
            return [part for part in broker.command("main") if "SharedArchive" in part]

        assert options() == []
        archive.touch()
        assert options() == []
        archive.write_bytes(b"classes")
        assert options() == [f"-XX:SharedArchiveFile={archive}"]


class TestInstall:
    @cases.each(
        ("text", "major"),
        [
            ('openjdk version "17.0.15" 2025-04-15', 17),
            ('openjdk version "25" 2025-09-16', 25),
            ('java version "1.8.0_402"', 8),
            ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2"', 21),
            ("command not found", None),
        ],
    )
    def test_java_versions(self, text: str, major: int | None) -> None:
        assert java.parse_version(text) == major

    @cases.each(
        ("text", "version"),
        [("v20.19.2", (20, 19)), ("v22.1.0\n", (22, 1)), ("", (0, 0)), ("20.1", (0, 0))],
    )
    def test_node_versions(self, text: str, version: tuple[int, int]) -> None:
        assert install_page.parse_node_version(text) == version

    def test_an_altered_missing_or_additional_jar_is_named(self, tmp_path: Path) -> None:
        import hashlib

        for name in ("good.jar", "altered.jar", "additional.jar"):
            (tmp_path / name).write_text(name)
        good = hashlib.sha256(b"good.jar").hexdigest()
        sums = {"good.jar": good, "altered.jar": good, "missing.jar": good}
        with pytest.raises(
            install_steps.InstallError, match=r": additional\.jar, altered\.jar, missing\.jar$"
        ):
            install_kafka.check_jars(tmp_path, sums)

    def test_the_committed_list_is_that_of_the_version_in_the_pom(self) -> None:
        pom = (paths.ROOT / "locks" / "kafka" / "pom.xml").read_text()
        assert f"<kafka.version>{paths.KAFKA_VERSION}</kafka.version>" in pom
        sums = install_kafka.committed_sums()
        assert f"kafka_2.13-{paths.KAFKA_VERSION}.jar" in sums
        assert all(len(value) == 64 for value in sums.values())

    def test_a_digest_changes_with_name_and_content_of_any_file(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_text("x")
        two.write_text("y")
        before = install_steps.digest(one, two)
        assert install_steps.digest(two, one) == before
        two.write_text("z")
        assert install_steps.digest(one, two) != before

    def test_without_a_model_engine_nothing_of_it_is_installed(self) -> None:
        names = {
            engine: [step.name for lane in install.lanes(engine, page=False) for step in lane]
            for engine in ("vllm", "scripted", "http://e/v1")
        }
        assert "model" in names["vllm"]
        assert names["scripted"] == names["http://e/v1"]
        assert not {"model", "model engine (vLLM)"} & set(names["scripted"])


class TestModels:
    def test_a_folder_is_named_by_its_last_part_and_asked_for_its_length(
        self, tmp_path: Path
    ) -> None:
        folder = tmp_path / "My-Model"
        folder.mkdir()
        (folder / "config.json").write_text('{"max_position_embeddings": 2048}')
        assert models.resolve("vllm", str(folder)) == plan.Model(str(folder), "my-model", 2048)

    def test_the_sampling_its_makers_recommend_is_the_default(self, tmp_path: Path) -> None:
        (tmp_path / "generation_config.json").write_text('{"temperature": 0.2, "top_p": 0.9}')
        found = models.in_folder(tmp_path, "m")
        assert (found.temperature, found.top_p) == (0.2, 0.9)

    @pytest.mark.parametrize("content", ["{}", "[]", '{"temperature": "hot"}', '{"top_p": 0}'])
    def test_without_a_usable_recommendation_the_api_default_holds(
        self, tmp_path: Path, content: str
    ) -> None:
        (tmp_path / "generation_config.json").write_text(content)
        found = models.in_folder(tmp_path, "m")
        assert (found.temperature, found.top_p) == (1.0, 1.0)

    def test_a_folder_that_is_not_there_is_named(self) -> None:
        with pytest.raises(processes.StartError, match=r"--model \./nowhere: no such folder"):
            models.resolve("vllm", "./nowhere")

    def test_a_hub_name_is_passed_on(self) -> None:
        assert models.resolve("vllm", "Org/Model-7B") == plan.Model("Org/Model-7B", "model-7b")

    def test_an_engine_that_does_not_answer_is_named_with_what_to_do(self) -> None:
        url = f"http://127.0.0.1:{ports.free_port()}/v1"
        with pytest.raises(processes.StartError, match=r"does not answer GET .*/v1/models"):
            models.resolve(url, "")

    def test_the_scripted_engine_answers_to_the_default_name(self) -> None:
        assert models.resolve("scripted", "") == plan.Model("scripted", paths.MODEL)

    def test_a_model_named_for_a_url_is_taken_without_asking(self) -> None:
        assert models.resolve("http://127.0.0.1:9/v1", "Llama") == plan.Model("Llama", "Llama")


class TestProbes:
    def test_readiness_is_the_status_code_and_the_rest_is_told(self) -> None:
        assert readiness.parse(200, b'{"ready": true, "state": "ready"}') == readiness.Readiness(
            ready=True, state="ready"
        )
        loading = readiness.parse(503, b'{"ready": false, "state": "loading", "detail": "weights"}')
        assert loading == readiness.Readiness(ready=False, state="loading", detail="weights")

    def test_what_a_worker_can_do_is_read_and_of_others_unknown(self) -> None:
        worker = readiness.parse(200, b'{"ready": true, "features": ["tools"]}')
        assert worker.features == ("tools",)
        assert readiness.parse(200, b'{"features": "tools"}').features is None
        read = readiness.parse(200, b'{"ready": true, "parsers": ["hermes", "qwen3"]}')
        assert (read.parsers, worker.parsers) == (("hermes", "qwen3"), ())

    @cases.each("body", [b"", b"nonsense", b"[]", b'{"state": null}'])
    def test_a_body_of_anything_else_is_no_reason_to_fail(self, body: bytes) -> None:
        assert readiness.parse(503, body) == readiness.Readiness()

    def test_no_answer_is_not_ready(self) -> None:
        assert (
            readiness.query(f"http://127.0.0.1:{ports.free_port()}/ready") == readiness.Readiness()
        )


def test_the_announcement_names_the_page_and_what_to_type(tmp_path: Path) -> None:
    running = a_state(url="http://127.0.0.1:8000", push_urls=["http://127.0.0.1:8001"], model="m")
    data = paths.Data(tmp_path)
    lines = banner.lines(running, data)
    assert lines[0] == "page      http://127.0.0.1:8000"
    assert f"tailrace token --data {tmp_path}`" in lines[1]
    assert lines[2].endswith(f"tailrace chat --data {tmp_path}")
    more = "\n".join(banner.more_lines(running, data))
    for part in ("http://127.0.0.1:8001", "curl -N http://127.0.0.1:8000/v1/responses"):
        assert part in more
    assert '"model": "m"' in more
    assert "OpenAI(base_url=" in more


class TestHints:
    """Symptom: the printed `tailrace down` and `tailrace token` were those of another folder."""

    def test_the_default_folder_needs_no_option(self) -> None:
        assert hints.command("down", paths.Data(paths.default_data())).endswith("tailrace down")

    def test_a_start_is_repeated_with_what_differs_from_the_defaults(self, tmp_path: Path) -> None:
        running = a_state(
            url="http://127.0.0.1:8100", push_urls=["http://127.0.0.1:8001"], engine="scripted"
        )
        line = hints.up(paths.Data(tmp_path / "my data"), running)
        assert line.endswith(
            f"tailrace up --engine scripted --port 8100 --data '{tmp_path}/my data'"
        )

    def test_another_deployment_on_a_port_is_named_with_what_stops_it(self, tmp_path: Path) -> None:
        listen = "import socket, time; s = socket.create_server(('127.0.0.1', {})); time.sleep(60)"
        port = ports.free_port()
        other = child_process.ChildProcess(
            "gateway-1",
            [sys.executable, "-c", listen.format(port)],
            environ=os.environ,
            log=tmp_path / "log",
            run=processes.new_mark(tmp_path / "other"),
        )
        try:
            waiting.eventually_blocking(lambda: ports.accepts(port), "it listens")
            said = hints.holder(port)
        finally:
            other.stop(0)
        assert f"by the deployment in {tmp_path}/other" in said
        assert f"tailrace down --data {tmp_path}/other` stops it" in said
