"""Each block of code in the README and the documents is run by a test, or stands in NOT_RUN with the reason.

A new block fails without a row here, and so does a row without its block or its test.  Commands in sentences and tables
are not run: `config/test_operations_document.py` checks that their words and options exist.
"""

import re
from textwrap import dedent

import pytest

from testbed.processes import ROOT

DOCUMENTS = [*(path.name for path in sorted(ROOT.glob("*.md"))), "examples/README.md"]
DOCUMENTS += [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]

# Document and beginning of a block: the test that runs the block. "```python" stands for all blocks in Python.
RUN = {
    ("examples/README.md", "```sh"): "examples/test_examples::test_the_commands_before_the_examples_make_their_topics",
    (
        "README.md",
        "```python\nimport os, sys",
    ): "cli/test_readme::test_the_pyspark_of_the_readme_and_of_up_works_when_pasted",
    (
        "README.md",
        "```python\nname_server",
    ): "interop/test_spark_on_rocketmq::test_the_pyspark_of_the_readme_works_when_pasted",
    ("README.md", "```python\nfrom rocketsim_client"): "client/test_documented::test_the_examples_run_as_they_stand",
    (
        "docs/backup.md",
        "```sh",
    ): "cluster/test_backup::test_a_pair_that_is_lost_is_restored_from_the_copy_of_its_slaves_store",
    ("docs/client.md", "```python"): "client/test_documented::test_the_examples_run_as_they_stand",
    ("docs/client.md", "```py\n"): "testing/test_pair::test_fixtures_restore_the_pair_and_leave_nothing_behind",
    (
        "docs/client.md",
        "```yaml",
    ): "access/test_clients::test_the_command_line_has_its_keys_from_the_environment_or_a_file",
    (
        "docs/clients.md",
        "```python",
    ): "v2/test_python_client::test_the_quick_start_of_the_documents_works_with_another_address",
    (
        "docs/clients.md",
        "```java",
    ): "cluster/test_official_clients::test_the_ten_lines_of_the_documents_work_with_another_address",
    (
        "docs/clients.md",
        "```go",
    ): "cluster/test_official_clients::test_the_ten_lines_of_the_documents_work_with_another_address",
    (
        "docs/clients.md",
        "```js",
    ): "cluster/test_official_clients::test_the_ten_lines_of_the_documents_work_with_another_address",
    (
        "docs/clients.md",
        "```rust",
    ): "cluster/test_official_clients::test_the_ten_lines_of_the_documents_work_with_another_address",
    (
        "docs/clients.md",
        "```\nrocketsim admin",
    ): "cluster/test_set_up::test_a_pair_is_set_up_secured_and_promoted_by_the_documents",
    (
        "docs/move-from-kafka.md",
        "```python\nfrom rocketsim_client",
    ): "client/test_documented::test_the_examples_run_as_they_stand",
    ("docs/move-from-kafka.md", "```python"): "source/test_documented::test_the_snippets_of_the_documents_run",
    (
        "docs/monitoring.md",
        "```\nrocketmq_consumer_lag",
    ): "deploy/test_monitoring::test_prometheus_accepts_the_query_of_the_document",
    (
        "docs/replication.md",
        "```\nrocketsim admin promoteSlave",
    ): "cluster/test_set_up::test_a_pair_is_set_up_secured_and_promoted_by_the_documents",
    (
        "docs/rocketmq.md",
        "```python\nspark.read.",
    ): "interop/test_spark_on_rocketmq::test_the_batch_of_the_document_works_when_pasted",
    (
        "docs/rocketmq.md",
        "```properties",
    ): "cluster/test_set_up::test_the_follower_of_the_document_has_a_valid_configuration",
    ("docs/run.md", "```"): "cluster/test_set_up::test_a_pair_is_set_up_secured_and_promoted_by_the_documents",
    ("docs/secure.md", "```"): "cluster/test_set_up::test_a_pair_is_set_up_secured_and_promoted_by_the_documents",
    (
        "docs/spark-clusters.md",
        "```sh",
    ): "source/test_standalone::test_the_commands_of_the_document_ship_an_environment_to_the_executors",
    ("docs/spark-recipes.md", "```sh"): "source/test_documented::test_the_snippets_of_the_documents_run",
    ("docs/spark-recipes.md", "```python"): "source/test_documented::test_the_snippets_of_the_documents_run",
    (
        "docs/spark-recipes.md",
        "```python\nonce =",
    ): "source/test_documented::test_the_recipe_drops_copies_in_different_batches_and_forgets_ids_behind_the_watermark",
    ("docs/spark-recipes.md", "```sql"): "source/test_documented::test_the_snippets_of_the_documents_run",
    (
        "docs/spark-recipes.md",
        "```\nexport ROCKETSIM_NAMESRV",
    ): "source/test_pipelines::test_the_pipeline_of_the_examples_reads_a_topic_and_writes_another",
    ("docs/spark.md", "```python"): "source/test_documented::test_the_snippets_of_the_documents_run",
    ("docs/spark.md", "```json"): "source/test_documented::test_the_offsets_of_the_document_are_read",
    (
        "docs/start.md",
        "```sh\nrocketsim",
    ): "cli/test_up_in_background::test_a_cluster_runs_in_the_background_until_down",
    ("docs/start.md", "```python"): "test_documents::test_programs_that_tests_run_in_the_readme_are_the_same_elsewhere",
    (
        "docs/when-it-breaks.md",
        "```sh",
    ): "cluster/test_set_up::test_a_pair_is_set_up_secured_and_promoted_by_the_documents",
    (
        "docs/monitoring.md",
        "```yaml",
    ): "deploy/test_monitoring::test_prometheus_accepts_the_configuration_of_the_document",
}
NOT_RUN = {
    ("README.md", "```\n./run demo"): "sets up a virtual environment; CI does so, and runs the tests",
    ("RELEASING.md", "```\n./run dist"): "a release; tests/test_wheel.py builds the packages and checks them",
    ("RELEASING.md", "```\n.venv/bin/pip install cibuildwheel"): "needs Docker",
    ("RELEASING.md", "```\n.ci/run"): "is what CI does",
    ("RELEASING.md", "```\npython3 -m venv"): "downloads packages; a long test of tests/test_wheel.py does the same",
    ("RELEASING.md", "```\nversion="): "publishes",
    ("RELEASING.md", "```\n.venv/bin/twine upload"): "publishes",
    ("docs/ARCHITECTURE.md", "```\n"): "lists of packages and calls",
    ("docs/clients.md", "```csharp"): "needs .NET; the page says that this program was not run",
    ("docs/clients.md", "```cpp"): "needs RocketMQ's C++ client; the page says that this program was not run",
    ("docs/clients.md", "```\n# namesrv.properties"): "two files side by side; tests/remoting sets both ports",
    (
        "docs/clients.md",
        "```\nrocketsim up --remoting",
    ): "needs RocketMQ's mqadmin; tests/interop runs it on these ports",
    ("docs/console.md", "```\npip install"): "tests/test_wheel.py installs the extra, tests/console runs the command",
    ("docs/deploy.md", "```\ndocker build"): "needs Docker; a long test of tests/deploy builds the image with buildah",
    ("docs/deploy.md", "```\npython3 -m venv"): "changes the machine; tests/deploy checks the units",
    ("docs/deploy.md", "```\nkubectl"): "needs a Kubernetes; tests/deploy checks the file",
    ("docs/monitoring.md", "```\nmetricsPort"): "one key; tests/deploy/test_prometheus.py sets it",
    ("docs/move-from-kafka.md", "```py\n"): "programs for Kafka, to compare with",
    (
        "docs/move-from-rocketmq.md",
        "```sh\nrocketsim store verify",
    ): "the store is the reader's; tests/store/test_rocketmq_versions.py verifies stores of RocketMQ",
    (
        "docs/move-from-rocketmq.md",
        "```sh\nrocketsim broker",
    ): "the files are the reader's; tests/interop opens stores of a RocketMQ",
    ("docs/performance.md", "```\n./run bench"): "takes hours",
    (
        "docs/rocketmq.md",
        "```python\nspark.readStream",
    ): "needs a slave of a RocketMQ; tests/interop reads from one with the same options",
    ("docs/start.md", "```sh\n./run setup"): "CI does so",
    ("docs/start.md", "```sh\npython3 -m venv"): "downloads packages; a long test of tests/test_wheel.py does the same",
    ("docs/start.md", "```sh\nrocketsim doctor"): "starts Spark; tests/cli/test_doctor.py does",
    ("docs/storage_format.md", "```\n"): "layouts of files",
}


def blocks(document: str) -> list[str]:
    text = (ROOT / document).read_text()
    found = re.findall(r"^( *)(```[\w]*\n.*?)^ *```$", text, re.M | re.S)
    return [dedent(indent + block) for indent, block in found if not block.startswith("```mermaid")]


def row(document: str, block: str) -> tuple[str, str] | None:
    """Returns the row with the longest beginning that fits."""
    rows = [one for one in {**RUN, **NOT_RUN} if one[0] == document and block.startswith(one[1])]
    return max(rows, key=lambda one: len(one[1]), default=None)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_code_is_run_by_a_test_or_has_a_reason(document: str) -> None:
    assert [block for block in blocks(document) if row(document, block) is None] == []


def test_every_row_has_its_block_and_its_test() -> None:
    found = {row(document, block) for document in DOCUMENTS for block in blocks(document)}
    assert {*RUN, *NOT_RUN} - found == set()
    assert not RUN.keys() & NOT_RUN.keys()
    for name in RUN.values():
        file, _, test = name.partition("::")
        assert re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / f"{file}.py").read_text(), re.M), name
