//! Chains of causes: how they are walked, how long they may become, and how they go.
//!
//! # Invariants
//!
//! 1. No error holds more than [`MAX_CAUSES`] links below and including itself, counted along the longest way
//!    through causes, attached failures and the cause of a correction. So whatever recurses over one (a
//!    `Debug` of a user's own, a redaction) has a bound, and a chain that goes on for ever, such as that of
//!    jobs that each depend on the one before, keeps no more than that.
//! 2. What is cut off is said, and its two ends are kept: what failed last and what failed first.
//! 3. A drop does not recurse, not even through foreign errors whose causes cannot be seen.
//! 4. What is asked of a foreign error (its cause, its text, its drop) is contained here: errors are bound and
//!    shown where a panic would keep a job from ending.

use std::cell::{Cell, RefCell};
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use super::wrap::retry_in;
use super::{ErrorKind, Inner, JobError, RetrySignal, Source, brief};
use crate::unwind::{catch, discard};

/// The most links of a chain of causes that are kept, and that are walked: a longer one is a foreign
/// error's that goes round in a circle.
pub(crate) const MAX_CAUSES: usize = 64;

/// Whatever is kept of the first failure, it leaves room for as many more as a chain usually has.
const MAX_KEPT: usize = 8;

type AnyError = dyn StdError + 'static;

/// The links of a chain of causes that starts at `first`, which is part of it.
pub(crate) fn links(first: &AnyError) -> impl Iterator<Item = &AnyError> {
    std::iter::successors(Some(first), |error| cause_of(*error)).take(MAX_CAUSES)
}

/// The cause of an error; none of a foreign one that panics when it is asked.
fn cause_of(error: &AnyError) -> Option<&AnyError> {
    catch(|| StdError::source(error)).unwrap_or_default()
}

/// What an error says; of a foreign one that panics when it is asked, that.
pub(crate) fn said(error: &(impl fmt::Display + ?Sized)) -> String {
    catch(|| error.to_string())
        .unwrap_or_else(|text| format!("an error whose text panicked: {text}"))
}

/// The [`JobError`]s among them.
pub(crate) fn chain(first: &AnyError) -> impl Iterator<Item = &JobError> {
    links(first).filter_map(|error| error.downcast_ref::<JobError>())
}

impl JobError {
    /// This error and those of this type in its chain of causes, nearest first.
    pub(crate) fn known_links(&self) -> impl Iterator<Item = &JobError> {
        chain(self)
    }
}

fn correction(kind: &ErrorKind) -> Option<&JobError> {
    match kind {
        ErrorKind::Retry(RetrySignal::ResponseCorrection(correction)) => Some(&correction.cause),
        _ => None,
    }
}

/// How many links hang on this cause, itself included; of an error of this type that is known.
fn depth(cause: &AnyError) -> usize {
    let mut above = 0;
    for link in links(cause) {
        if let Some(known) = link.downcast_ref::<JobError>() {
            return above + known.inner.depth;
        }
        above += 1;
    }
    above
}

impl Inner {
    /// Holds invariant 1 after a change.
    pub(super) fn bound(&mut self) {
        if let ErrorKind::Retry(RetrySignal::ResponseCorrection(correction)) = &mut self.kind {
            shorten(&mut correction.cause);
        }
        self.attached.iter_mut().for_each(shorten);
        if let Some(cause) = &self.source
            && depth(&**cause) >= MAX_CAUSES
        {
            let ends = ends(&**cause);
            discard(self.source.replace(ends));
        }
        let below = [
            correction(&self.kind).map_or(0, |cause| cause.inner.depth),
            self.attached
                .iter()
                .map(|other| other.inner.depth)
                .max()
                .unwrap_or(0),
            self.source.as_deref().map_or(0, |cause| depth(cause)),
        ];
        self.depth = 1 + below.into_iter().max().unwrap_or(0);
    }
}

fn shorten(error: &mut JobError) {
    if error.inner.depth >= MAX_CAUSES {
        let mut nearest = error.alone();
        nearest.source = Some(Arc::new(Omitted::of(error, None)));
        nearest.depth = 1 + MAX_KEPT;
        error.inner = Arc::new(nearest);
    }
}

/// The two ends of a chain that has become too long.
fn ends(cause: &AnyError) -> Source {
    match cause.downcast_ref::<JobError>() {
        Some(known) => {
            let mut known = known.clone();
            shorten(&mut known);
            Arc::new(known)
        }
        None => Arc::new(Omitted::of(cause, Some(brief(said(cause))))),
    }
}

/// What stands in a chain for the links that were cut out of it.
#[derive(Debug)]
struct Omitted {
    /// The foreign error that they were causes of, which cannot be kept without them.
    nearest: Option<String>,
    count: usize,
    /// What the first failure said, where it is none of this crate's.
    said: Option<String>,
    first: Option<JobError>,
}

impl Omitted {
    /// What hangs on `error`.
    fn of(error: &AnyError, nearest: Option<String>) -> Self {
        let first = first_failure(error);
        let below = links(error).skip(1);
        let count: usize = below
            .map(|link| {
                link.downcast_ref::<Self>()
                    .map_or(1, |omitted| omitted.count)
            })
            .sum();
        Self {
            nearest,
            count: count.saturating_sub(usize::from(first.is_some())),
            said: match first {
                Some(_) => None,
                None => {
                    let last = links(error).skip(1).last();
                    last.map(|last| brief(said(last)))
                }
            },
            first,
        }
    }
}

/// The failure that the causes of `error` began with, alone; or the signal to run again that they hide, which no
/// shortening may swallow (ERR-6). What the walk for an upstream's answer would have found is kept on it.
fn first_failure(error: &AnyError) -> Option<JobError> {
    let below = cause_of(error)?;
    let found = retry_in(below).or_else(|| chain(below).last().cloned())?;
    let mut alone = found.alone();
    alone.depth = MAX_KEPT;
    if matches!(alone.kind, ErrorKind::Retry(_)) && retry_in(below).is_none() {
        // History: nobody is to take it for a signal.
        alone.kind = ErrorKind::Uncorrectable {
            message: brief(found.to_string()),
        };
    }
    if alone.upstream.is_none() {
        alone.upstream = chain(below).next().and_then(JobError::upstream_failure);
    }
    Some(JobError {
        inner: Arc::new(alone),
    })
}

impl JobError {
    /// This error without its causes and what failed besides.
    fn alone(&self) -> Inner {
        let mut kind = self.inner.kind.clone();
        if let ErrorKind::Retry(RetrySignal::ResponseCorrection(correction)) = &mut kind
            && correction.cause.inner.depth > 1
        {
            correction.cause = JobError::correctable(brief(correction.cause.to_string()));
        }
        Inner {
            kind,
            source: None,
            attached: Vec::new(),
            upstream: self.inner.upstream.clone(),
            human: self.inner.human.clone(),
            depth: 1,
        }
    }
}

impl fmt::Display for Omitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(nearest) = &self.nearest {
            write!(f, "{nearest}; ")?;
        }
        write!(f, "{} causes in between are left out", self.count)?;
        match &self.said {
            Some(said) => write!(f, ", the first was: {said}"),
            None => Ok(()),
        }
    }
}

impl StdError for Omitted {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.first.as_ref().map(|first| first as _)
    }
}

thread_local! {
    /// What still has to be dropped, while an error is being dropped on this thread.
    static LEFT: RefCell<Vec<Remains>> = const { RefCell::new(Vec::new()) };
    static DROPPING: Cell<bool> = const { Cell::new(false) };
}

/// What an error owned that may own errors in turn.
type Remains = (ErrorKind, Option<Source>, Vec<JobError>);

impl Drop for Inner {
    fn drop(&mut self) {
        if self.depth == 1 && self.source.is_none() {
            return;
        }
        let kind = std::mem::replace(&mut self.kind, ErrorKind::TimedOut { budget: None });
        let mut next = Some((kind, self.source.take(), std::mem::take(&mut self.attached)));
        let nested = DROPPING.try_with(|dropping| dropping.replace(true));
        if nested == Ok(true) {
            // The outermost drop does it, below which nothing piles up.
            let _ = LEFT.try_with(|left| left.borrow_mut().extend(next.take()));
            return;
        }
        while let Some((kind, source, attached)) = next {
            // Each may be a user's, whose destructor may panic; none keeps the others.
            discard(source);
            attached.into_iter().for_each(discard);
            discard(kind);
            next = LEFT.try_with(|left| left.borrow_mut().pop()).ok().flatten();
        }
        let _ = DROPPING.try_with(|dropping| dropping.set(false));
    }
}
