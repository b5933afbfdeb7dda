//! Maps by ids that the runtime gives out itself.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by ids that count upwards. Nobody else chooses the keys, so the hash need not withstand
/// whoever would have them collide, and may cost a multiplication.
pub(super) type IdMap<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // An odd number near 2^64 by the golden ratio: ids in a row fall far apart.
        self.0 = (self.0.rotate_left(5) ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // The map looks at the upper bits and at the lower ones.
        self.0 ^= self.0 >> 32;
    }
}
