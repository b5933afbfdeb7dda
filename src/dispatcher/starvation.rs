//! When nobody can go on for want of threads (`RT-5`).
//!
//! Under a cap it can happen that every thread waits for a job that has none, and none will come
//! back. Then one job is refused, and says so, rather than all of them waiting for ever.

use std::sync::Arc;

use super::entry::Entry;
use super::inner::Inner;
use super::settle;
use crate::aside;
use crate::error::JobError;
use crate::job::core::{JobCore, WaitingFor};

/// Refuses the oldest job that somebody waits for and that cannot have a thread, if that is what
/// everybody waits for.
///
/// Looked at when the last active job begins to wait, when a queue finds no thread, and when a
/// thread is left behind; whichever of them comes last sees the whole. A look that could come to
/// something, and the settlement that it may come to, are the settler's: whoever asks for it may be
/// the timer.
pub(super) fn relieve(inner: &Arc<Inner>) {
    if may_be_stuck(inner) {
        let looking = Arc::clone(inner);
        inner.settlers().run(move || look(&looking));
    }
}

fn may_be_stuck(inner: &Arc<Inner>) -> bool {
    inner.active() <= 0 && inner.router().is_stuck(inner.threads())
}

fn look(inner: &Arc<Inner>) {
    loop {
        // What is read below is read at different instants; it holds together if nothing moved.
        let seen = inner.moves();
        let Some(stuck) = find_stuck(inner) else {
            return;
        };
        if inner.moves() == seen {
            refuse(inner, &stuck);
            return;
        }
    }
}

/// The job to refuse, if nobody can go on.
fn find_stuck(inner: &Arc<Inner>) -> Option<Arc<Entry>> {
    if !may_be_stuck(inner) {
        return None;
    }
    let entries = inner.entries();
    let started: Vec<_> = entries
        .iter()
        .filter(|entry| entry.is_started() && !entry.is_abandoned())
        .collect();
    let mut awaited = Vec::new();
    for entry in &started {
        match entry.job().waiting_for() {
            // One that is about to go on: its wait has ended and it has not noticed yet.
            Some(WaitingFor::Job(other)) if other.is_settled() => return None,
            Some(WaitingFor::Job(other)) => ends_of(&other, &mut awaited),
            _ => return None,
        }
    }
    // A wait for a job whose thread was left behind ends: that job is about to be settled.
    let ends_by_itself = |job: &Arc<JobCore>| {
        entries
            .iter()
            .any(|entry| entry.is_started() && Arc::ptr_eq(entry.job(), job))
    };
    if awaited.iter().any(ends_by_itself) {
        return None;
    }
    entries
        .iter()
        .filter(|entry| entry.place().is_some() && !entry.is_started())
        .filter(|entry| awaited.iter().any(|job| Arc::ptr_eq(job, entry.job())))
        .min_by_key(|entry| age(entry))
        .cloned()
}

/// A child goes before a root, and the one that was submitted first.
fn age(entry: &Entry) -> (bool, std::time::SystemTime) {
    (entry.job().is_root(), entry.job().profile().submitted_at)
}

/// Where the waits that begin at `job` end: at jobs that wait for no other.
fn ends_of(job: &Arc<JobCore>, ends: &mut Vec<Arc<JobCore>>) {
    let mut next = vec![Arc::clone(job)];
    while let Some(job) = next.pop() {
        if job.is_settled() || ends.iter().any(|end| Arc::ptr_eq(end, &job)) {
            continue;
        }
        match job.waiting_for() {
            Some(WaitingFor::Job(other)) => next.push(other),
            _ => {
                let waits: Vec<_> = job
                    .dependencies()
                    .iter()
                    .filter(|dependency| !dependency.is_settled())
                    .cloned()
                    .collect();
                if waits.is_empty() {
                    ends.push(job);
                } else {
                    next.extend(waits);
                }
            }
        }
    }
}

fn refuse(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let refusal = JobError::system(
        "dispatcher",
        format!(
            "{} cannot have a thread: all {} that max_threads allows are taken by jobs that wait \
             for others; raise max_threads or nest fewer orchestrators",
            entry.job().id(),
            inner.threads().cap()
        ),
    );
    if settle::refuse_queued(inner, entry, refusal.clone()) {
        aside::warn!("{refusal}");
    }
}
