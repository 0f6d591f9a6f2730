-- Take the lock from the holder that has this fence. It learns at its next round trip.
--
-- ARGV     1 fence  2 '1' forget what is done, '0' leave that alone
-- Answers  1 done, 0 that holder has it no more

-- include: _ending

local lock = read()
for token, share in pairs(lock and lock.shares or {}) do
  if share.fence == tonumber(ARGV[1]) and (holds(share) or share.state == 'cooldown') then
    let_go_share(lock, token, 'revoked', math.max((share.ends - clock()) / 1000, TOMBSTONE))
    return 1
  end
end
local gone = not lock or lock.state == 'released' or lock.state == 'revoked'
if gone or lock.shares or lock.fence ~= tonumber(ARGV[1]) or (lock.record ~= nil) ~= (ARGV[2] == '1') then
  return 0
end
-- The tombstone lives as long as the lease would have: until then its holder may ask, and is told. What is done has none.
let_go(lock, 'revoked', lock.record and 0 or math.max(call('PTTL', N), TOMBSTONE))
return 1
