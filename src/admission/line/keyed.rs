//! Values that come and go: each found by its key at once, and never taken for one that lay there
//! before it.

use std::cmp::Ordering;
use std::num::NonZeroU64;

use slab::Slab;

/// Names one value. Ordered by birth, which no other has.
#[derive(Clone, Copy, Debug)]
pub(in crate::admission) struct Key {
    born: NonZeroU64,
    at: usize,
}

impl Key {
    /// The birth that the value was given.
    pub(in crate::admission) fn born(self) -> u64 {
        self.born.get()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.born == other.born
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.born.cmp(&other.born)
    }
}

/// Births in a row, from 1.
#[derive(Debug, Default)]
pub(super) struct Births(u64);

impl Births {
    pub(super) fn next(&mut self) -> NonZeroU64 {
        let born = NonZeroU64::MIN.saturating_add(self.0);
        self.0 += 1;
        born
    }
}

pub(super) struct Keyed<T> {
    slab: Slab<(NonZeroU64, T)>,
}

/// A key whose value is still to be put in.
pub(super) struct Vacant<'a, T> {
    born: NonZeroU64,
    entry: slab::VacantEntry<'a, (NonZeroU64, T)>,
}

impl<T> Vacant<'_, T> {
    pub(super) fn key(&self) -> Key {
        Key {
            born: self.born,
            at: self.entry.key(),
        }
    }

    pub(super) fn insert(self, value: T) {
        self.entry.insert((self.born, value));
    }
}

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        Self { slab: Slab::new() }
    }
}

impl<T> Keyed<T> {
    /// Where a value of this birth is put in next.
    pub(super) fn vacant(&mut self, born: NonZeroU64) -> Vacant<'_, T> {
        Vacant {
            born,
            entry: self.slab.vacant_entry(),
        }
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        let (born, value) = self.slab.get(key.at)?;
        (*born == key.born).then_some(value)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (born, value) = self.slab.get_mut(key.at)?;
        (*born == key.born).then_some(value)
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        self.slab.try_remove(key.at).map(|(_, value)| value)
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slab
            .iter()
            .map(|(at, (born, value))| (Key { born: *born, at }, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_find_what_came_after_it() {
        let mut births = Births::default();
        let mut values = Keyed::default();
        let mut insert = |values: &mut Keyed<char>, value| {
            let vacant = values.vacant(births.next());
            let key = vacant.key();
            vacant.insert(value);
            key
        };
        let first = insert(&mut values, 'a');
        assert_eq!(values.remove(first), Some('a'));
        let second = insert(&mut values, 'b');
        assert_eq!(second.at, first.at);
        assert_eq!(values.get(first), None);
        assert_eq!(values.remove(first), None);
        assert_eq!(values.get(second), Some(&'b'));
        assert!(first < second && first.born() == 1);
    }
}
