-- One of many that share the lock leaves. The others are not read: each of them would cost something.

local MANY = 32 -- others: if all of them have died, who waits asks when the leases end that it knows of

-- Whether the others keep out whoever is the first in the queue, or nobody is. `at` and `own`: where the first waiter of the
-- leaver's process stands, and that process, which takes part again; nil: none of it waits.
local function keep_others_out(token, at, own)
  local first, place = unpack(call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES'))
  if at and not (first and tonumber(place) <= tonumber(at)) then
    first = own
  end
  local head = first and call('ZRANGE', QUEUE .. ':' .. first, '0', '0')[1]
  return not first or (head and at_once(limit_of(token), limit_of(head)) == 1 and listens(first))
end

-- Whether the token has left so. The key, and its place in the index, may last for longer than those that are left; the last
-- of them put that right.
local function leaves_many(token)
  local count = limit_of(token) > MANY and redis.pcall('HLEN', N)
  if type(count) ~= 'number' or count <= MANY then
    return false
  end
  local ends, state = string.match(call('HGET', N, token) or '', '^(%d+) (%l+) ')
  if not (state == 'held' or state == 'granted') or tonumber(ends) <= clock() then
    return false
  end
  local process = string.sub(token, 1, 16)
  local place = place_of(process)
  if not keep_others_out(token, place, process) then
    return false
  end
  allow_writes('HDEL', N, token)
  if place then
    stand_at(place, process)
  end
  return true
end
