//! When nobody can go on for want of threads (`RT-5`).
//!
//! Under a cap it can happen that every thread waits for a job that has none, and none will come
//! back. Then one job is refused, and says so, rather than all of them waiting for ever.

use std::any::Any;
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
        let mut seen = Seen::default();
        let Some((owner, stuck)) = find_stuck(inner, &mut seen) else {
            return;
        };
        // What was read was read at different instants; it holds together if nothing moved.
        if seen.holds() {
            refuse(&owner, &stuck);
            return;
        }
    }
}

/// The dispatchers that wait for one another: how often each had moved before it was looked at.
#[derive(Default)]
struct Seen(Vec<(Arc<Inner>, usize)>);

impl Seen {
    /// False when it has been seen.
    fn begin(&mut self, inner: &Arc<Inner>) -> bool {
        let new = !self.0.iter().any(|(seen, _)| Arc::ptr_eq(seen, inner));
        if new {
            self.0.push((Arc::clone(inner), inner.moves()));
        }
        new
    }

    fn holds(&self) -> bool {
        self.0.iter().all(|(inner, moves)| inner.moves() == *moves)
    }
}

/// The job to refuse, and whose it is, if nobody can go on: neither here nor in the dispatchers whose jobs are waited
/// for from here.
fn find_stuck(inner: &Arc<Inner>, seen: &mut Seen) -> Option<(Arc<Inner>, Arc<Entry>)> {
    let mut candidates: Vec<(Arc<Inner>, Arc<Entry>)> = Vec::new();
    let mut next = vec![Arc::clone(inner)];
    while let Some(inner) = next.pop() {
        if !seen.begin(&inner) {
            continue;
        }
        if !may_be_stuck(&inner) {
            return None;
        }
        for job in awaited(&inner)? {
            let owner = dispatcher_of(&job)?;
            // Neither in line, where somebody has to let it go, nor found: it is on its way, or it runs, or its
            // thread was left behind and it is about to be settled.
            let entry = owner.entry(job.id())?;
            if entry.is_started() || entry.place().is_none() {
                return None;
            }
            next.push(Arc::clone(&owner));
            candidates.push((owner, entry));
        }
    }
    candidates.into_iter().min_by_key(|(_, entry)| age(entry))
}

/// Where the waits of all that runs here end; `None` when something here goes on by itself.
fn awaited(inner: &Inner) -> Option<Vec<Arc<JobCore>>> {
    let mut awaited = Vec::new();
    for entry in inner.entries() {
        if !entry.is_started() || entry.is_abandoned() {
            continue;
        }
        match entry.job().waiting_for() {
            // One that is about to go on: its wait has ended and it has not noticed yet.
            Some(WaitingFor::Job(other)) if other.is_settled() => return None,
            Some(WaitingFor::Job(other)) => ends_of(&other, &mut awaited),
            _ => return None,
        }
    }
    Some(awaited)
}

fn dispatcher_of(job: &JobCore) -> Option<Arc<Inner>> {
    let supervisor: Arc<dyn Any + Send + Sync> = job.supervisor()?;
    supervisor.downcast().ok()
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
    let waiting = inner
        .entries()
        .iter()
        .filter(|entry| entry.is_started() && !entry.is_abandoned())
        .count();
    let taken = Taken {
        cap: inner.threads().cap(),
        waiting,
        subscriptions: inner.threads().aside(),
        left_behind: inner.left_behind().len(),
    };
    let refusal = JobError::system("dispatcher", taken.refusal_of(entry.job().id()));
    if settle::refuse_queued(inner, entry, refusal.clone()) {
        aside::warn!("{refusal}");
    }
}

/// Who has the threads that the cap allows.
struct Taken {
    cap: usize,
    /// Jobs, all of which wait for others.
    waiting: usize,
    subscriptions: usize,
    left_behind: usize,
}

impl Taken {
    /// Why a job is refused, and what helps: more threads, or fewer of those who have them.
    fn refusal_of(&self, job: &str) -> String {
        let Self {
            cap,
            waiting,
            subscriptions,
            left_behind,
        } = self;
        let rest = cap.saturating_sub(waiting + subscriptions + left_behind);
        let mut advice = String::from("raise max_threads");
        for (helps, fewer) in [
            // That one waits for a child is what orchestrators are for.
            (*waiting > 1, "nest fewer orchestrators"),
            (*subscriptions > 0, "keep fewer subscriptions"),
            (
                *left_behind > 0,
                "see to the jobs that `unresponsive` lists",
            ),
        ] {
            if helps {
                advice = format!("{advice}, or {fewer}");
            }
        }
        format!(
            "{job} cannot have a thread: of the {cap} that max_threads allows jobs that wait for \
             others have {waiting}, subscriptions {subscriptions}, jobs that were left behind \
             {left_behind}, and the runtime keeps {rest} for itself; {advice}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_who_has_the_threads_and_advises_by_that() {
        let refusal = |waiting, subscriptions, left_behind| {
            let taken = Taken {
                cap: 11,
                waiting,
                subscriptions,
                left_behind,
            };
            taken.refusal_of("job-1")
        };
        assert_eq!(
            refusal(4, 0, 0),
            "job-1 cannot have a thread: of the 11 that max_threads allows jobs that wait for others \
             have 4, subscriptions 0, jobs that were left behind 0, and the runtime keeps 7 for \
             itself; raise max_threads, or nest fewer orchestrators"
        );
        let others = refusal(1, 2, 1);
        assert!(!others.contains("nest fewer"), "{others}");
        assert!(others.contains("keep fewer subscriptions"), "{others}");
        assert!(others.contains("`unresponsive`"), "{others}");
    }
}
