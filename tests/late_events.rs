//! What comes after a job's end names the job no more (`EVT-7`), and causes that cascade.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{CountingGate, DatabaseGate};
use nucleo_runtime::db::{Abort, DbManagedResource, DbResourceProvider, HeldPermit};
use nucleo_runtime::events::{Event, EventFilter, EventKind, LimiterChange};
use nucleo_runtime::testing::{EventRecorder, quiesce};
use nucleo_runtime::{
    ErrorKind, JobContext, JobDispatcher, JobError, JobRequirements, ManualClock, SubmitError,
    Workflow, doer_fn, job_fn,
};

/// A database whose connections outlast every abort, until the test lets them go.
#[derive(Debug)]
struct Clinging {
    gate: Arc<DatabaseGate>,
    kept: Mutex<Vec<HeldPermit>>,
}

#[derive(Clone, Debug)]
struct Clung;

impl DbManagedResource for Clung {
    fn provider(&self) -> &str {
        "clinging"
    }
}

impl DbResourceProvider for Clinging {
    type Handle = Clung;

    fn name(&self) -> &str {
        "clinging"
    }

    fn admission(&self) -> Arc<DatabaseGate> {
        Arc::clone(&self.gate)
    }

    fn acquire(&self, _: bool, _: Option<Instant>) -> Result<Clung, JobError> {
        Ok(Clung)
    }

    fn begin(&self, _: &Clung) -> Result<(), JobError> {
        Ok(())
    }

    fn commit(&self, _: &Clung) -> Result<(), JobError> {
        Ok(())
    }

    fn await_visible(&self, _: &Clung) -> Result<(), JobError> {
        Ok(())
    }

    fn rollback(&self, _: &Clung) -> Result<(), JobError> {
        Ok(())
    }

    fn close(&self, _: &Clung) -> Result<(), JobError> {
        Ok(())
    }

    fn abort(&self, _: &Clung, _: Instant) -> Result<Abort, JobError> {
        Ok(Abort::Orphaned)
    }

    fn keep_until_gone(&self, _: &Clung, permit: HeldPermit) {
        self.kept.lock().unwrap().push(permit);
    }
}

#[test]
fn neither_a_thread_left_behind_nor_a_late_permit_speaks_for_a_job_that_has_ended() {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let recorder = EventRecorder::new();
    let _all = dispatcher
        .subscribe(EventFilter::all(), recorder.clone())
        .unwrap();
    let database = Arc::new(Clinging {
        gate: Arc::new(CountingGate::database("clinging", 1).unwrap()),
        kept: Mutex::default(),
    });
    let (begun, begins) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let (spoken, speaks) = mpsc::channel();
    let (noting, noted) = mpsc::channel();
    let needs = Arc::clone(&database);
    let job = job_fn(
        move || JobRequirements::none().provider(&needs),
        move |_, context: &JobContext| {
            begun.send(()).unwrap();
            let _ = gate.recv();
            context.publish("I am still here", Some(50));
            context.record_admission_wait(Duration::from_secs(1));
            noting.send(context.note("late", 1)).unwrap();
            spoken.send(()).unwrap();
            Ok(())
        },
    )
    .timeout(Some(Duration::from_secs(60)));
    let workflow = Workflow::new("user", "late").unwrap();
    let handle = dispatcher.submit(&workflow, job).unwrap();
    begins.recv().unwrap();
    while !handle.is_settled() {
        clock.advance(Duration::from_secs(1));
        std::thread::yield_now();
    }
    assert!(handle.get().unwrap_err().is_timed_out());

    let ended = handle.snapshot();

    drop(go);
    speaks.recv().unwrap();
    let noted = noted.recv().unwrap().unwrap_err();
    assert!(matches!(noted.kind(), ErrorKind::IllegalState { .. }));
    assert_eq!(handle.snapshot(), ended, "what it was at its end stays");
    assert_eq!(database.gate.in_use(), 1);
    drop(std::mem::take(&mut *database.kept.lock().unwrap()));
    assert_eq!(database.gate.in_use(), 0);
    quiesce(&dispatcher);

    let told: Vec<_> = recorder
        .events_of(handle.job_id())
        .iter()
        .map(|event| event.kind())
        .collect();
    assert_eq!(
        told,
        [
            EventKind::JobScheduled,
            EventKind::Limiter,
            EventKind::JobStarted,
            EventKind::JobTimedOut,
            EventKind::WorkflowComplete,
        ]
    );
    // The permit's return is told all the same, so that the account's books balance.
    let last = recorder.events().pop().unwrap();
    let Event::Limiter(returned) = &*last else {
        panic!("{last:?}");
    };
    assert_eq!(
        (returned.change, &*returned.account),
        (LimiterChange::Released, "db:clinging")
    );
    assert!(returned.snapshot.is_none());
}

// case F37
#[test]
fn a_failure_cascades_through_dependencies_with_its_first_cause() {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let recorder = EventRecorder::new();
    let _all = dispatcher
        .subscribe(EventFilter::all(), recorder.clone())
        .unwrap();
    let workflow = Workflow::new("user", "cascade").unwrap();
    let (go, gate) = mpsc::channel::<()>();
    let first = job_fn(JobRequirements::none, move |_, _| -> Result<(), JobError> {
        // Until all of them have been submitted.
        let _ = gate.recv();
        Err(JobError::correctable("the well is dry"))
    });
    let first = dispatcher.submit(&workflow, first).unwrap();
    let after = |dependencies: &[&nucleo_runtime::JobHandle<()>]| {
        let job = job_fn(JobRequirements::none, |_, _| Ok(()));
        let submission = dispatcher.submit_with(&workflow, job);
        let submission = dependencies
            .iter()
            .fold(submission, |submission, handle| submission.after(handle));
        submission.submit().unwrap()
    };
    // A diamond is no cycle.
    let left = after(&[&first]);
    let right = after(&[&first]);
    let last = after(&[&left, &right]);
    drop(go);
    for handle in [&left, &right, &last] {
        let error = handle.get().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::DependencyFailed { .. }),
            "{error:?}"
        );
    }
    quiesce(&dispatcher);
    for handle in [&left, &right, &last] {
        let events = recorder.events_of(handle.job_id());
        let failure = events
            .iter()
            .find(|event| event.kind() == EventKind::DependencyFailure)
            .unwrap();
        assert_eq!(
            failure.message(),
            "Job failed due to dependency failure: Correctable: the well is dry"
        );
        assert!(recorder.kinds_of(handle.job_id()).len() == 3);
    }
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case F37
#[test]
fn a_cycle_is_refused_at_the_submission_and_a_chain_is_not_one() {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "cycle").unwrap();
    let (send, own) = mpsc::channel::<nucleo_runtime::JobHandle<usize>>();
    let root = doer_fn(move |context| {
        let me = own.recv().map_err(|_| JobError::correctable("gone"))?;
        let leaf = || job_fn(JobRequirements::none, |_, _| Ok(()));
        // It would wait for its parent, which waits for it.
        let refused = context.submit_with(leaf()).after(&me).submit();
        let Err(SubmitError::Cycle { path }) = refused else {
            return Err(JobError::correctable("a cycle was taken"));
        };
        let mut chain = vec![context.submit(leaf())?];
        for _ in 0..50 {
            let next = context.submit_with(leaf());
            let next = chain.iter().fold(next, |next, before| next.after(before));
            chain.push(next.submit()?);
        }
        nucleo_runtime::JobHandle::join_all(&chain)?;
        Ok(path.len())
    });
    let handle = dispatcher.submit(&workflow, root).unwrap();
    send.send(handle.clone()).unwrap();
    assert_eq!(*handle.get().unwrap(), 3);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}
