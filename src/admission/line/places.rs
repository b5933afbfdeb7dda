//! The waiters in the order of their arrival.
//!
//! # Invariants
//!
//! 1. From `first`, `behind` leads over every place once, in ascending order, to `last`; `before`
//!    leads back.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::groups::ClassId;
use super::keyed::Keyed;
use super::seqs::Seq;
use super::{Ticket, Waiter};
use crate::clock::WaitCell;

struct Place {
    waiter: Waiter,
    ticket: Arc<Ticket>,
    class: ClassId,
    before: Option<Seq>,
    behind: Option<Seq>,
}

#[derive(Default)]
pub(super) struct Places {
    places: Keyed<Place>,
    first: Option<Seq>,
    last: Option<Seq>,
}

impl Places {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    #[inline]
    pub(super) fn first_seq(&self) -> Option<Seq> {
        self.first
    }

    #[inline]
    pub(super) fn first(&self) -> Option<(Seq, &Waiter)> {
        let seq = self.first?;
        Some((seq, self.get(seq)?))
    }

    #[inline]
    pub(super) fn get(&self, seq: Seq) -> Option<&Waiter> {
        self.places.get(seq).map(|place| &place.waiter)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, seq: Seq) -> Option<&mut Waiter> {
        self.places.get_mut(seq).map(|place| &mut place.waiter)
    }

    #[inline]
    pub(super) fn class_of(&self, seq: Seq) -> Option<ClassId> {
        self.places.get(seq).map(|place| place.class)
    }

    /// Puts a waiter behind all others.
    pub(super) fn push(
        &mut self,
        (born, cell): (NonZeroU64, Arc<WaitCell>),
        waiter: Waiter,
        class: ClassId,
    ) -> (Seq, Arc<Ticket>) {
        let vacant = self.places.vacant(born);
        let seq = vacant.key();
        let ticket = Arc::new(Ticket::new(seq, cell));
        vacant.insert(Place {
            waiter,
            ticket: Arc::clone(&ticket),
            class,
            before: self.last,
            behind: None,
        });
        match self.last.replace(seq) {
            Some(before) => self.link(before, |place| place.behind = Some(seq)),
            None => self.first = Some(seq),
        }
        (seq, ticket)
    }

    /// Takes a waiter out of the line.
    #[inline]
    pub(super) fn remove(&mut self, seq: Seq) -> Option<(Arc<Ticket>, ClassId)> {
        let Place {
            ticket,
            class,
            before,
            behind,
            ..
        } = self.places.remove(seq)?;
        match before {
            Some(before) => self.link(before, |place| place.behind = behind),
            None => self.first = behind,
        }
        match behind {
            Some(behind) => self.link(behind, |place| place.before = before),
            None => self.last = before,
        }
        Some((ticket, class))
    }

    #[inline]
    fn link(&mut self, seq: Seq, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.places.get_mut(seq) {
            change(place);
        }
    }

    /// The next behind a place.
    pub(super) fn behind(&self, seq: Seq) -> Option<Seq> {
        self.places.get(seq)?.behind
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Seq, &Waiter)> {
        let places = std::iter::successors(self.first, |seq| self.behind(*seq));
        places.filter_map(|seq| Some((seq, self.get(seq)?)))
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        let places: Vec<_> = self.iter().map(|(seq, _)| seq).collect();
        assert_eq!(places.len(), self.places.len(), "invariant 1");
        assert!(places.is_sorted(), "invariant 1");
        assert_eq!(places.last().copied(), self.last, "invariant 1");
        for (before, seq) in places.iter().zip(places.iter().skip(1)) {
            let place = self.places.get(*seq).expect("invariant 1");
            assert_eq!(place.before, Some(*before), "invariant 1");
        }
    }
}
