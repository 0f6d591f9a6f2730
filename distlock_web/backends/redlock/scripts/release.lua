-- Take a vote back: at the end of a lock, or because too few others came with it.
--
-- ARGV     1 token  2 the attempt that is undone; '' every one of this token  3 cooldown (ms): leave it taken for so long, or '0'
--          4 '1': it goes on waiting here
-- Answers  0 taken back, now or by an earlier copy of this; 1 expired, 2 taken, 3 revoked before

local token, attempt, cooldown = ARGV[1], ARGV[2], tonumber(ARGV[3])
local lock = read(call('GET', N))
local lost = loss(lock, token)
if lost == 0 and attempt ~= '' and attempt ~= lock.attempt then
  return 2 -- a later attempt has this vote: it is alive, and this comes late
end
if lost == 0 and lock.state ~= 'cooldown' then
  call('ZREM', INDEX, N) -- a write that a full server allows: what follows is allowed after it
  if cooldown > 0 then
    lock.state = 'cooldown'
    write(lock, cooldown)
    list(clock(), cooldown)
    if cooldown > DAY / 2 then -- for so long the vote has kept it
      keep_index(cooldown)
    end
  else
    call('DEL', N)
  end
end
if ARGV[4] == '1' then
  wait(clock(), token)
end
if attempt == '' and call('EXISTS', WAITING) == 1 then
  call('ZREM', WAITING, token)
  if lost < 2 then -- also where this node had no vote: a majority was given back all the same
    tell()
  end
end
return lost
