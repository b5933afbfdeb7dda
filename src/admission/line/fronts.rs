//! The first member of each class of a group, in order.
//!
//! # Invariants
//!
//! 1. `fresh` ascends. No place is in both.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::groups::ClassId;
use super::seqs::Seq;

/// A class comes in with its first member at the end of the line, and most go from the front: a
/// queue does for these. Those in front of one that goes from the middle move into the tree, each
/// once, and so does a class whose first member has gone.
#[derive(Debug, Default)]
pub(super) struct Fronts {
    /// Some of the classes whose first member ever is still there.
    fresh: VecDeque<(Seq, ClassId)>,
    others: BTreeMap<Seq, ClassId>,
}

impl Fronts {
    /// A class comes in, whose first member is behind all others.
    pub(super) fn insert(&mut self, seq: Seq, class: ClassId) {
        self.fresh.push_back((seq, class));
    }

    /// Takes a place out; puts `next` in, of the same class.
    #[inline]
    pub(super) fn advance(&mut self, seq: Seq, next: Option<Seq>) {
        let class = match self.fresh.front() {
            Some((first, class)) if *first == seq => {
                let class = *class;
                self.fresh.pop_front();
                Some(class)
            }
            _ => self.take(seq),
        };
        if let (Some(class), Some(next)) = (class, next) {
            self.others.insert(next, class);
        }
    }

    fn take(&mut self, seq: Seq) -> Option<ClassId> {
        if let Some(class) = self.others.remove(&seq) {
            return Some(class);
        }
        let index = self.index(seq)?;
        self.others.extend(self.fresh.drain(..index));
        self.fresh.pop_front().map(|(_, class)| class)
    }

    fn index(&self, seq: Seq) -> Option<usize> {
        self.fresh.binary_search_by_key(&seq, |(seq, _)| *seq).ok()
    }

    /// How many of `fresh` are at `seq` or before it.
    fn fresh_up_to(&self, seq: Seq) -> usize {
        self.fresh.partition_point(|(front, _)| *front <= seq)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.others.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, seq: Seq) -> Option<ClassId> {
        let fresh = self.index(seq).and_then(|index| self.fresh.get(index));
        fresh
            .map(|(_, class)| *class)
            .or_else(|| self.others.get(&seq).copied())
    }

    /// The first place behind `seq`.
    pub(super) fn after(&self, seq: Seq) -> Option<Seq> {
        let fresh = self
            .fresh
            .get(self.fresh_up_to(seq))
            .map(|(front, _)| *front);
        let behind = (Bound::Excluded(seq), Bound::Unbounded);
        let other = self.others.range(behind).next().map(|(front, _)| *front);
        match (fresh, other) {
            (Some(fresh), Some(other)) => Some(fresh.min(other)),
            (fresh, other) => fresh.or(other),
        }
    }

    /// The classes whose first member is at `seq` or before it.
    pub(super) fn up_to(&self, seq: Seq) -> impl Iterator<Item = ClassId> {
        let fresh = self.fresh.range(..self.fresh_up_to(seq));
        let others = self.others.range(..=seq);
        fresh
            .map(|(_, class)| *class)
            .chain(others.map(|(_, class)| *class))
    }
}
