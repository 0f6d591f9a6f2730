-- include: _hand_over

-- The rest of acquire.lua: the lock is not free, or others wait for it, or this token has asked before, or it is one that
-- may hold the lock beside others.

-- It is another's for `left` ms, and the caller is not in its queue.
local function taken(lock, left, record)
  return {0, now, left, left, 0, 0, lock.holder, now - lock.since, record}
end

if changed > 2 then -- the mark is one of them
  keep_index(tonumber(expire))
end
if changed > 1 then -- the floor is one of them: no fence before was as high
  highest = now - 1
end
local process = string.sub(token, 1, 16)
local entry = token .. ' ' .. expire .. ' ' .. holder
local lock = read()
local free = is_free(lock)

-- It is known to be taken until then (µs): the ZADD above may have listed it for less.
local function list_until(ends)
  if not free and ends >= now + expire * 1000 then
    call('ZADD', INDEX, 'GT', format('%d', ends), N)
  end
end

-- A copy of this that was lost on the way came after its owner gave the lock back: `known` is what is known of that.
local function refuse_copy(known, left, ends)
  if free then
    call('ZREM', INDEX, N) -- the way of a free lock has listed it
  end
  list_until(ends)
  return taken(known, left)
end

if lock and lock.record then
  call('ZREM', INDEX, N) -- the way of a free lock has listed it
  if asked then -- who did not hear that it is done: what is handed over to it later would not be taken
    leave(process, entry)
  end
  return taken(lock, math.max(call('PTTL', N), 1), lock.record)
end
if refused then
  return refused
end
if lock and lock.token == token then
  if not holds(lock) then
    local left = math.max(call('PTTL', N), 1)
    return refuse_copy(lock, left, now + left * 1000)
  end
  list(lock, live_at_least(N, expire))
  if lock.state == 'granted' then
    lock.state = 'contended' -- its owner knows: it is not given back as one without an owner
    call('SET', N, text(lock), 'KEEPTTL')
  end
  return {lock.fence, now}
end
local share = lock and lock.shares and lock.shares[token]
if share then
  if not holds(share) then
    return refuse_copy(share, math.max(math.ceil((share.ends - now) / 1000), 1), lock.last)
  end
  share.ends, share.state = math.max(share.ends, now + expire * 1000), 'held'
  keep_shares(put(lock, token, share))
  return {share.fence, now}
end

if admits(lock, token) then
  -- A holder that died gives nothing back: the caller that finds the lock free hands it to the head.
  local waits, others = set_place(process)
  lock, others = hand_over(lock, 0, entry)
  if not others and admits(lock, token) then
    if waits then
      leave(process, entry)
    end
    if limit_of(token) > 1 then
      local _, fence = join_shares(lock, token, expire, 'held', holder)
      return {fence, now}
    end
    return {own(lock, token, expire, 'contended', holder), now}
  end
  lock = read()
end

local remaining = free_in(lock, limit_of(token), now)
list_until(lock.shares and lock.last or now + remaining * 1000)

-- include: _join

if join == '0' or (max_waiters and is_full(lock, process, entry, place, tonumber(max_waiters))) then
  if asked then
    leave(process, entry)
  end
  if lock.shares then
    hand_over(lock) -- those behind it may fit beside the holders
  end
  return taken(lock, remaining)
end
contend(lock)
local recheck, stands_at, heard = join_queue(process, entry, tonumber(place) or now, math.min(remaining, tonumber(expire)))
return {0, now, recheck, remaining, stands_at, heard and 0 or 1, lock.holder, now - lock.since}
