//! The first member of each class of a group, in order.
//!
//! # Invariants
//!
//! 1. `queue` ascends. No place is in both.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::groups::ClassId;
use super::seqs::Seq;

/// A class comes in with its first member at the end of the line, most go from the front, and many
/// groups have one class: a queue does for these. Those in front of one that goes from the middle
/// move into the tree, and so does a class whose next member is not in front of the queue.
#[derive(Debug, Default)]
pub(super) struct Fronts {
    queue: VecDeque<(Seq, ClassId)>,
    others: BTreeMap<Seq, ClassId>,
}

impl Fronts {
    /// A class comes in, whose first member is behind all others.
    pub(super) fn insert(&mut self, seq: Seq, class: ClassId) {
        self.queue.push_back((seq, class));
    }

    /// Takes a place out; puts `next` in, of the same class.
    #[inline]
    pub(super) fn advance(&mut self, seq: Seq, next: Option<Seq>) {
        let class = match self.queue.front() {
            Some((first, class)) if *first == seq => {
                let class = *class;
                self.queue.pop_front();
                Some(class)
            }
            _ => self.take(seq),
        };
        if let (Some(class), Some(next)) = (class, next) {
            match self.queue.front() {
                Some((first, _)) if *first < next => {
                    self.others.insert(next, class);
                }
                _ => self.queue.push_front((next, class)),
            }
        }
    }

    fn take(&mut self, seq: Seq) -> Option<ClassId> {
        if let Some(class) = self.others.remove(&seq) {
            return Some(class);
        }
        let index = self.index(seq)?;
        self.others.extend(self.queue.drain(..index));
        self.queue.pop_front().map(|(_, class)| class)
    }

    fn index(&self, seq: Seq) -> Option<usize> {
        self.queue.binary_search_by_key(&seq, |(seq, _)| *seq).ok()
    }

    /// How many of `queue` are at `seq` or before it.
    fn queued_up_to(&self, seq: Seq) -> usize {
        self.queue.partition_point(|(front, _)| *front <= seq)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.queue.len() + self.others.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, seq: Seq) -> Option<ClassId> {
        let queued = self.index(seq).and_then(|index| self.queue.get(index));
        queued
            .map(|(_, class)| *class)
            .or_else(|| self.others.get(&seq).copied())
    }

    /// The first place behind `seq`.
    pub(super) fn after(&self, seq: Seq) -> Option<Seq> {
        let queued = self
            .queue
            .get(self.queued_up_to(seq))
            .map(|(front, _)| *front);
        let behind = (Bound::Excluded(seq), Bound::Unbounded);
        let other = self.others.range(behind).next().map(|(front, _)| *front);
        match (queued, other) {
            (Some(queued), Some(other)) => Some(queued.min(other)),
            (queued, other) => queued.or(other),
        }
    }

    /// The classes whose first member is at `seq` or before it.
    pub(super) fn up_to(&self, seq: Seq) -> impl Iterator<Item = ClassId> {
        let queued = self.queue.range(..self.queued_up_to(seq));
        let others = self.others.range(..=seq);
        queued
            .map(|(_, class)| *class)
            .chain(others.map(|(_, class)| *class))
    }
}

#[cfg(test)]
mod tests {
    use super::super::keyed::{Births, Key, Keyed};
    use super::*;
    use proptest::prelude::*;

    fn keys(count: usize) -> Vec<Key> {
        let mut births = Births::default();
        let mut values = Keyed::default();
        let insert = |_| {
            let vacant = values.vacant(births.next());
            let key = vacant.key();
            vacant.insert(());
            key
        };
        (0..count).map(insert).collect()
    }

    proptest! {
        /// A class comes in at the end, or one that stands somewhere goes on to a later place.
        #[test]
        fn fronts_are_what_a_tree_of_them_would_be(
            ops in prop::collection::vec((any::<u16>(), 0..3_usize, any::<u16>()), 1..120),
        ) {
            let keys = keys(2 * ops.len() + 2);
            let mut fronts = Fronts::default();
            let mut tree = BTreeMap::new();
            let mut last = 0;
            for (which, what, how_far) in ops {
                let standing: Vec<Seq> = tree.keys().copied().collect();
                if what == 0 || standing.is_empty() {
                    last += 1;
                    fronts.insert(keys[last], keys[last]);
                    tree.insert(keys[last], keys[last]);
                } else {
                    let at = standing[usize::from(which) % standing.len()];
                    let place = keys.iter().position(|key| *key == at).unwrap();
                    let free = (place + 1..=last).filter(|place| !tree.contains_key(&keys[*place]));
                    let free: Vec<_> = free.collect();
                    let next = (what == 1 && !free.is_empty())
                        .then(|| keys[free[usize::from(how_far) % free.len()]]);
                    fronts.advance(at, next);
                    let class = tree.remove(&at).unwrap();
                    if let Some(next) = next {
                        tree.insert(next, class);
                    }
                }
                prop_assert_eq!(fronts.len(), tree.len());
                for key in &keys[..=last] {
                    prop_assert_eq!(fronts.get(*key), tree.get(key).copied());
                    let behind = (Bound::Excluded(*key), Bound::Unbounded);
                    prop_assert_eq!(fronts.after(*key), tree.range(behind).next().map(|it| *it.0));
                    let mut up_to: Vec<_> = fronts.up_to(*key).collect();
                    let mut expected: Vec<_> = tree.range(..=*key).map(|it| *it.1).collect();
                    up_to.sort();
                    expected.sort();
                    prop_assert_eq!(up_to, expected);
                }
            }
        }
    }
}
