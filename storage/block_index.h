// Which blocks there are, where, and in which order they would leave.  One index per tenant.
//
// An entry is one cache line (64 B): digest, variant (interned), state, extent, disk location, holds, pins,
// children, recency list links, recency, frequency, metadata.  Entries live in `kShards` shards by digest, each
// with an open-addressing table of {tag, slot}; a batch is grouped by shard and prefetched, so that 500 keys cost one
// wave of cache misses per shard and not 1,000 misses one after the other.
//
// No I/O, no threads, no clock of its own (`now_s` comes in).
// Thread-safety: all methods from any thread; a lock per shard, never two at once.  What several keys of one call
// answer is therefore not one instant's truth, each key's answer is.
// Limits: 16.7 M entries a shard (268 M in all), 65,534 variants, 65,535 holds, pins and children an entry.
//
// States (the table below is the law; a test walks every pair):
//   absent -> reserved      a staged publish claims the key while the daemon copies
//   absent -> host          a mapped publish
//   reserved -> host | absent
//   host -> host+disk       spilled         host -> absent       evicted, cleared, damaged
//   host+disk -> disk       evicted         host+disk -> host    disk copy lost     host+disk -> absent
//   disk -> promoting -> host+disk | disk   disk -> absent       promoting -> absent
// An entry that loses its name while held stays as a nameless one (kDoomed) until its last hold ends.
#pragma once
