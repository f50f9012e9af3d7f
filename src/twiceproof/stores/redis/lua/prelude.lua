-- Shared by all scripts. KEYS[1] is a lane's counter, KEYS[2] a key that never exists: while a cluster moves the
-- slot, a present and an absent key together make it answer TRYAGAIN, so that no script sees half a lane.
if redis.replicate_commands then redis.replicate_commands() end  -- Redis 6.2: TIME before a write
local call = redis.call
@NOW@

-- lane:r:kind.member  a record
-- lane:i              the index: members 'k' kind . member and 's' kind . state . member, in the order of their bytes
-- lane:d:kind.queue   what is due when: members by time
-- lane:h:kind         heads: each queue by the time at which its first member is due, or an earlier one
-- where a member is space.key and the dots are NULs. All times are whole microseconds.
-- A record is a msgpack array of ten: six numbers of eight bytes, so that they can be read and written without
-- unpacking the rest, then what the client has packed: state, queue, nonce, body.
-- Where some of the numbers begin, and how many bytes all of them have:
local VERSION_AT, FENCE_AT, DUE_AT = 3, 12, 48
local HEAD = 55
