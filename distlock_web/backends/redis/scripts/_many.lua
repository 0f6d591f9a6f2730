-- One of many that share the lock leaves. The others are not read: each of them would cost something.

local MANY = 32  -- fields of N, the leaver's among them; if they are no more, all are read
local SOME = '8' -- of them are looked at

-- The µs at which the lease in a field of N ends; 0: there is none in it.
local function end_of(field)
  local ends, state = string.match(field or '', '^(%d+) (%l+) ')
  return (state == 'held' or state == 'granted') and tonumber(ends) or 0
end

-- Whether another holds the lock until then, of some that chance names. A field may be a tombstone, or a lease that has ended.
local function another_holds(token, till)
  local some = redis.pcall('HRANDFIELD', N, SOME, 'WITHVALUES')
  for i = 1, #some, 2 do
    if some[i] ~= token and end_of(some[i + 1]) >= till then
      return true
    end
  end
  return false
end

-- Whether the first waiter of this process waits for all readers to end, and not in vain.
local function waits_for_readers(process)
  local head = call('ZRANGE', QUEUE .. ':' .. process, '0', '0')[1]
  return head and limit_of(head) < SHARED and listens(process)
end

-- Whether the token has left so: where nobody waits, or the first does for readers, of whom one holds the lock for as long as
-- the leaver would have. Then nobody may enter sooner than it knows, and that one's release or lease hands the lock over. The
-- key, and its place in the index, may last for longer than those that are left; the last of them put that right.
local function leaves_many(token)
  local count = limit_of(token) > MANY and redis.pcall('HLEN', N)
  if type(count) ~= 'number' or count <= MANY then
    return false
  end
  local ends, process = end_of(call('HGET', N, token)), string.sub(token, 1, 16)
  if ends <= clock() then
    return false
  end
  local first, at = unpack(call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES'))
  local place = place_of(process)
  if place and not (first and tonumber(at) <= tonumber(place)) then
    first = process -- it takes part again
  end
  if first and not (limit_of(token) >= SHARED and waits_for_readers(first)) or
    not another_holds(token, first and ends or clock()) then
    return false
  end
  allow_writes('HDEL', N, token)
  if place then
    stand_at(place, process)
  end
  return true
end
