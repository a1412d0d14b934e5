from broker_service.runtime.deadlines import answer_s, wait_s


def test_a_fifth_of_the_callers_time_is_left_for_the_way_back_and_a_second_at_most():
    assert [(wait_s(left_s), answer_s(left_s)) for left_s in (1.0, 5.0, 60.0)] == [(0.8, 0.2), (4.0, 1.0), (59.0, 1.0)]
    assert wait_s(0.0) == 0.0
