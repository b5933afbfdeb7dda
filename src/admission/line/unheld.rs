//! The members of a class that an account has not held yet.

use super::seqs::{Seq, Seqs};

/// Beside the members themselves, of which it says which. Most accounts hold everyone at once or
/// nobody for long, and either costs no list.
#[derive(Debug, Default)]
pub(super) enum Unheld {
    #[default]
    All,
    Some(Seqs),
}

impl Unheld {
    #[inline]
    pub(super) fn is_empty(&self, members: &Seqs) -> bool {
        match self {
            Self::All => members.is_empty(),
            Self::Some(unheld) => unheld.is_empty(),
        }
    }

    /// The first behind `seq`.
    pub(super) fn after(&self, seq: Seq, members: &Seqs) -> Option<Seq> {
        match self {
            Self::All => members.after(seq),
            Self::Some(unheld) => unheld.after(seq),
        }
    }

    /// A member joins, before it is among the others, held or not.
    pub(super) fn join(&mut self, seq: Seq, is_held: bool, members: &Seqs) {
        match self {
            Self::All if is_held => *self = Self::Some(members.clone()),
            Self::Some(unheld) if !is_held => unheld.push(seq),
            Self::All | Self::Some(_) => {}
        }
    }

    /// A member leaves. Answers whether it was unheld.
    #[inline]
    pub(super) fn leave(&mut self, seq: Seq) -> bool {
        match self {
            Self::All => true,
            Self::Some(unheld) => unheld.remove(seq),
        }
    }

    /// A member is held from now on. Answers whether it was unheld.
    pub(super) fn hold(&mut self, seq: Seq, members: &Seqs) -> bool {
        if matches!(self, Self::All) {
            *self = Self::Some(members.clone());
        }
        self.leave(seq)
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn iter<'a>(&'a self, members: &'a Seqs) -> impl Iterator<Item = Seq> + 'a {
        match self {
            Self::All => members.iter(),
            Self::Some(unheld) => unheld.iter(),
        }
    }
}
