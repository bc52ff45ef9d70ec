"""A small rolling update: a server is replaced under load, and no stream is lost or altered.

`make rolling` replaces both servers, at full size, behind HAProxy or nginx.
"""

import pytest
from toy_load import questions
from toy_process import served_model
from toy_proxy import require
from toy_rolling import roll

FLAGS = (
    *("--load-format", "dummy", "--threads", "1", "--max-num-seqs", "16", "--max-num-batched-tokens", "64"),
    *("--drain-grace", "2", "--shutdown-timeout", "10", "--log-level", "warning"),
)
NUM_REQUESTS = 60


@pytest.mark.slow
def test_a_server_is_replaced_and_no_stream_is_lost() -> None:
    require("haproxy")
    asked = questions(8, 200, with_chats=False)
    rolling = roll("haproxy", served_model(), FLAGS, asked, NUM_REQUESTS, num_clients=4, num_replaced=1)
    assert [outcome.fault for outcome in rolling.outcomes if outcome.fault] == []
    assert len(rolling.outcomes) >= NUM_REQUESTS
    (one,) = rolling.replacements
    assert one.exit_code == 0
    assert one.num_running > 0
    assert one.unready_s - one.signalled_s < 1
    assert one.exited_s - one.signalled_s > 2, "it left before --drain-grace was over"
    assert {each.replica for each in rolling.during(one)} >= {"b"}
    later = [each for each in rolling.outcomes if each.started_s > one.ready_s]
    assert {each.replica for each in later} == {"a", "b"}, "the new server gets no requests"
