//! The first member of each class of a group, in order.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::groups::ClassId;
use super::seqs::Seq;

/// Most groups have one class, which costs no tree.
#[derive(Debug, Default)]
pub(super) enum Fronts {
    #[default]
    None,
    One(Seq, ClassId),
    Many(BTreeMap<Seq, ClassId>),
}

impl Fronts {
    pub(super) fn insert(&mut self, seq: Seq, class: ClassId) {
        match self {
            Self::None => *self = Self::One(seq, class),
            Self::One(other, of) => *self = Self::Many([(*other, *of), (seq, class)].into()),
            Self::Many(fronts) => {
                fronts.insert(seq, class);
            }
        }
    }

    /// Takes a place out; puts `next` in, of the same class.
    #[inline]
    pub(super) fn advance(&mut self, seq: Seq, next: Option<Seq>) {
        match self {
            Self::None => {}
            Self::One(front, _) => match next {
                Some(next) if *front == seq => *front = next,
                None if *front == seq => *self = Self::None,
                _ => {}
            },
            Self::Many(fronts) => {
                let class = fronts.remove(&seq);
                if let (Some(class), Some(next)) = (class, next) {
                    fronts.insert(next, class);
                }
            }
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(fronts) => fronts.len(),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, seq: Seq) -> Option<ClassId> {
        match self {
            Self::One(front, class) if *front == seq => Some(*class),
            Self::None | Self::One(..) => None,
            Self::Many(fronts) => fronts.get(&seq).copied(),
        }
    }

    /// The first place behind `seq`.
    pub(super) fn after(&self, seq: Seq) -> Option<Seq> {
        match self {
            Self::One(front, _) if *front > seq => Some(*front),
            Self::None | Self::One(..) => None,
            Self::Many(fronts) => {
                let behind = (Bound::Excluded(seq), Bound::Unbounded);
                fronts.range(behind).next().map(|(front, _)| *front)
            }
        }
    }

    /// The classes whose first member is at `seq` or before it.
    pub(super) fn up_to(&self, seq: Seq) -> impl Iterator<Item = ClassId> {
        let (one, many) = match self {
            Self::One(front, class) if *front <= seq => (Some(*class), None),
            Self::None | Self::One(..) => (None, None),
            Self::Many(fronts) => (None, Some(fronts.range(..=seq))),
        };
        one.into_iter()
            .chain(many.into_iter().flatten().map(|(_, class)| *class))
    }
}
