//! The dispatcher's record of one live job.

use std::sync::Arc;

use super::body::Body;
use super::routing::Place;
use crate::guard::Protection;
use crate::job::JobType;
use crate::job::behalf;
use crate::job::core::{JobCore, Outcome};
use crate::job::resources::ResourceSet;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::unwind::discard;

/// A job from its acceptance to its settlement.
pub(super) struct Entry {
    job: Arc<JobCore>,
    run_at_once: bool,
    protection: Protection,
    /// The path of the type of the job that submitted it.
    caller: Option<&'static str>,
    /// The job's own value. Whoever takes it decides what becomes of the job: its thread runs it,
    /// a cancellation of a queued job settles it.
    body: Mutex<Option<Box<dyn Body>>>,
    place: Mutex<Option<Place>>,
    attempt: Mutex<Option<Arc<ResourceSet>>>,
    /// What the job ends with, from when that is decided by its own work.
    pending: Mutex<Option<Outcome>>,
    /// A user's code is asked something before anything is granted.
    asking: AtomicBool,
    abandoned: AtomicBool,
    thread_ended: AtomicBool,
}

impl Entry {
    pub(super) fn new(
        job: Arc<JobCore>,
        body: Box<dyn Body>,
        run_at_once: bool,
        protection: Protection,
        caller: Option<&'static str>,
    ) -> Arc<Self> {
        Arc::new(Self {
            job,
            run_at_once,
            protection,
            caller,
            body: Mutex::new(Some(body)),
            place: Mutex::new(None),
            attempt: Mutex::new(None),
            pending: Mutex::new(None),
            asking: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            thread_ended: AtomicBool::new(false),
        })
    }

    pub(super) fn job(&self) -> &Arc<JobCore> {
        &self.job
    }

    pub(super) fn runs_at_once(&self) -> bool {
        self.run_at_once
    }

    /// What the job said of its protection when it was submitted.
    pub(super) fn protection(&self) -> &Protection {
        &self.protection
    }

    pub(super) fn caller(&self) -> Option<&'static str> {
        self.caller
    }

    /// Whether it is a guard, or a judge that one spawned: somebody who got a thread waits for it.
    pub(super) fn is_guard(&self) -> bool {
        let is_guard = |job: &JobCore| job.profile().job_type == JobType::Guardrail;
        is_guard(&self.job) || self.job.parent().is_some_and(|parent| is_guard(&parent))
    }

    pub(super) fn take_body(&self) -> Option<Box<dyn Body>> {
        self.body.lock().take()
    }

    pub(super) fn is_started(&self) -> bool {
        self.body.lock().is_none()
    }

    pub(super) fn set_place(&self, place: Option<Place>) {
        *self.place.lock() = place;
    }

    pub(super) fn place(&self) -> Option<Place> {
        *self.place.lock()
    }

    /// The resources that the job holds now, for whoever has to close them from outside.
    pub(super) fn attempt(&self) -> Option<Arc<ResourceSet>> {
        self.attempt.lock().clone()
    }

    pub(super) fn set_attempt(&self, attempt: Option<Arc<ResourceSet>>) {
        let before = std::mem::replace(&mut *self.attempt.lock(), attempt);
        // A grant may go back here, which takes the monitor's lock: not under ours.
        drop(before);
    }

    pub(super) fn set_asking(&self, asking: bool) {
        self.asking.store(asking, Ordering::SeqCst);
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking.load(Ordering::SeqCst)
    }

    pub(super) fn set_pending(&self, outcome: Outcome) {
        let before = self.pending.lock().replace(outcome);
        discard(before);
    }

    pub(super) fn pending(&self) -> Option<Outcome> {
        self.pending.lock().clone()
    }

    /// The job has settled with it.
    pub(super) fn clear_pending(&self) {
        let pending = self.pending.lock().take();
        discard(pending);
    }

    /// Nobody waits for the job's thread any more. Answers false when it has ended or somebody said
    /// so before. Only under the lock of the list of abandoned jobs.
    pub(super) fn abandon(&self) -> bool {
        !self.thread_ended.load(Ordering::SeqCst) && !self.abandoned.swap(true, Ordering::SeqCst)
    }

    /// The job's thread ends. Only under the lock of the list of abandoned jobs.
    pub(super) fn end_thread(&self) {
        self.thread_ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Whoever has the last reference, these are the user's, and their destructors may panic. What
        // they do is the job's.
        let body = self.body.get_mut().take();
        let pending = self.pending.get_mut().take();
        let protection = std::mem::take(&mut self.protection);
        behalf::acting(Some(self.job.behalf()), || {
            discard(body);
            discard(pending);
            drop(protection);
        });
    }
}
