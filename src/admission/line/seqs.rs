//! Places in the line, in order: added at the back, removed anywhere.

use std::collections::VecDeque;

use super::keyed::Key;

/// A place in the line; a later arrival has a greater one.
pub(in crate::admission) type Seq = Key;

/// Places in ascending order. Most have one at most, which costs no allocation.
#[derive(Clone, Debug, Default)]
pub(super) enum Seqs {
    #[default]
    None,
    One(Seq),
    Many(VecDeque<Seq>),
}

impl Seqs {
    /// Adds a place behind all others.
    pub(super) fn push(&mut self, seq: Seq) {
        match self {
            Self::None => *self = Self::One(seq),
            Self::One(first) => *self = Self::Many([*first, seq].into()),
            Self::Many(places) => places.push_back(seq),
        }
    }

    /// Takes a place out, and answers whether it was there.
    #[inline]
    pub(super) fn remove(&mut self, seq: Seq) -> bool {
        match self {
            Self::One(first) if *first == seq => {
                *self = Self::None;
                true
            }
            Self::None | Self::One(_) => false,
            Self::Many(places) => match places.front() {
                Some(first) if *first == seq => places.pop_front().is_some(),
                Some(first) if *first < seq => places
                    .binary_search(&seq)
                    .is_ok_and(|index| places.remove(index).is_some()),
                _ => false,
            },
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Seq> {
        match self {
            Self::None => None,
            Self::One(first) => Some(*first),
            Self::Many(places) => places.front().copied(),
        }
    }

    /// The first place behind `seq`.
    pub(super) fn after(&self, seq: Seq) -> Option<Seq> {
        match self {
            Self::None => None,
            Self::One(first) => (*first > seq).then_some(*first),
            Self::Many(places) => match places.front() {
                Some(first) if *first > seq => Some(*first),
                _ => {
                    let index = places.partition_point(|place| *place <= seq);
                    places.get(index).copied()
                }
            },
        }
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn iter(&self) -> impl Iterator<Item = Seq> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(first) => (Some(*first), None),
            Self::Many(places) => (None, Some(places.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}
