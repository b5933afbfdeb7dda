//! Places in the line, in order: added at the back, removed anywhere.

use std::collections::VecDeque;

/// A place in the line; a later arrival has a greater one.
pub(super) type Seq = u64;

/// Places in ascending order.
#[derive(Debug, Default)]
pub(super) struct Seqs {
    places: VecDeque<Seq>,
}

impl Seqs {
    /// Adds a place behind all others.
    pub(super) fn push(&mut self, seq: Seq) {
        self.places.push_back(seq);
    }

    /// Takes a place out, and answers whether it was there.
    pub(super) fn remove(&mut self, seq: Seq) -> bool {
        match self.places.front() {
            None => return false,
            Some(first) if *first > seq => return false,
            Some(first) if *first == seq => return self.places.pop_front().is_some(),
            Some(_) => {}
        }
        match self.places.binary_search(&seq) {
            Ok(index) => self.places.remove(index).is_some(),
            Err(_) => false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn first(&self) -> Option<Seq> {
        self.places.front().copied()
    }

    /// The first place behind `seq`.
    pub(super) fn after(&self, seq: Seq) -> Option<Seq> {
        match self.places.front() {
            Some(first) if *first > seq => Some(*first),
            _ => {
                let index = self.places.partition_point(|place| *place <= seq);
                self.places.get(index).copied()
            }
        }
    }

    /// Takes out every place from `seq` on.
    pub(super) fn split_from(&mut self, seq: Seq) -> impl Iterator<Item = Seq> + use<> {
        let index = self.places.partition_point(|place| *place < seq);
        self.places.split_off(index).into_iter()
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn iter(&self) -> impl Iterator<Item = Seq> {
        self.places.iter().copied()
    }
}
