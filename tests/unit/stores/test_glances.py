"""How often an answer is looked for before whoever asked goes to sleep."""

import itertools

from twiceproof.threads import LONGEST_REST, AdaptiveSpin

MOST = 50


class Answer:
    """There after so many looks; None: never."""

    def __init__(self, after):
        self.after = after
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return self.after is not None and self.looks >= self.after


def looks_for(glances, after):
    answer = Answer(after)
    glances.look(answer)
    return answer.looks


def test_an_answer_that_comes_soon_is_looked_for_until_it_is_there():
    glances = AdaptiveSpin(MOST)
    assert [looks_for(glances, after) for after in (1, 7, MOST, 1)] == [1, 7, MOST, 1]


def test_a_slow_server_is_looked_at_less_and_less():
    glances = AdaptiveSpin(MOST)
    tried = [nth for nth in range(10 * LONGEST_REST) if looks_for(glances, None)]
    pauses = [after - before - 1 for before, after in itertools.pairwise(tried)]
    assert pauses[:5] == [1, 3, 7, 15, 31]
    assert set(pauses[-3:]) == {LONGEST_REST}


def test_no_look_is_longer_than_falling_asleep():
    assert looks_for(AdaptiveSpin(MOST), None) == MOST


def test_a_server_that_has_become_quick_is_looked_at_again_each_time():
    glances = AdaptiveSpin(MOST)
    for _ in range(40):
        looks_for(glances, None)
    waited = next(nth for nth in range(LONGEST_REST + 1) if looks_for(glances, 1))
    assert waited > 0
    assert [looks_for(glances, 1) for _ in range(3)] == [1, 1, 1]
