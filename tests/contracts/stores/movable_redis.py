"""A Redis engine whose server's clock a test can move: the shift is kept beside each lane's counter."""

from twiceproof.stores.redis.codec import SERVER_TIME
from twiceproof.stores.redis.engine import RedisEngine


class MovableRedisEngine(RedisEngine):
    now_lua = SERVER_TIME + " + math.floor((redis.call('GET', KEYS[1] .. ':shift') or 0) * 1000000)"

    def advance(self, seconds: float) -> None:
        for lane in self.lanes:
            node = self._nodes.node_of(lane.slot)
            self._nodes.run(node, ("INCRBYFLOAT", lane.keys[0] + b":shift", repr(seconds)))
