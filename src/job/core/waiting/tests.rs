use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::admission::{CountingGate, Demand};
use crate::{
    ErrorKind, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, ManualClock,
    RetrySignal, Workflow, doer_fn, job_fn,
};

const LONG: Duration = Duration::from_secs(3_600);

struct Host {
    dispatcher: JobDispatcher,
    clock: ManualClock,
    workflow: Workflow,
}

fn host(cap: usize) -> Host {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .max_threads(cap)
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    Host {
        dispatcher,
        clock,
        workflow: Workflow::new("user", "test").unwrap(),
    }
}

impl Host {
    /// Returns once the job's thread sleeps.
    fn until_it_sleeps<T>(&self, job: &JobHandle<T>) {
        job.job().cell().wait_quiet(&self.clock);
    }
}

/// A job that hands out its context, and then waits for the one that it is given.
fn waits_for_another(host: &Host) -> (JobHandle<()>, mpsc::Sender<JobHandle<()>>, JobContext) {
    let (handing, handed) = mpsc::channel();
    let (tell, told) = mpsc::channel::<JobHandle<()>>();
    let doer = doer_fn(move |context| {
        handing.send(JobContext::clone(context)).unwrap();
        told.recv().unwrap().get().map(drop)
    });
    let job = host.dispatcher.submit(&host.workflow, doer).unwrap();
    (job, tell, handed.recv().unwrap())
}

fn is_deadlock(error: &JobError) -> bool {
    matches!(error.kind(), ErrorKind::Deadlock { .. })
}

#[test]
fn whoever_sleeps_by_a_jobs_context_leaves_its_wait_on_record() {
    let host = host(64);
    let (first, tell_first, context) = waits_for_another(&host);
    let (second, tell_second, _) = waits_for_another(&host);
    tell_first.send(second.clone()).unwrap();
    host.until_it_sleeps(&first);
    context.sleep(Duration::ZERO).unwrap();
    tell_second.send(first.clone()).unwrap();
    let error = second.get().unwrap_err();
    assert!(is_deadlock(&error), "{error}");
    assert!(is_deadlock(&first.get().unwrap_err()));
    host.dispatcher.shutdown(LONG).unwrap();
}

#[test]
fn whoever_asks_for_admission_by_a_jobs_context_leaves_its_wait_on_record() {
    let host = host(64);
    let (first, tell_first, context) = waits_for_another(&host);
    let (second, tell_second, _) = waits_for_another(&host);
    tell_first.send(second.clone()).unwrap();
    host.until_it_sleeps(&first);

    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let demand = || {
        let mut demand = Demand::new();
        demand.add(&gate, ());
        demand
    };
    let admission = host.dispatcher.admission();
    let held = admission.admit(demand(), &context).unwrap();
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| admission.admit(demand(), &context).unwrap().release());
        while admission.queue_len() == 0 {
            std::thread::yield_now();
        }
        held.release();
        parked.join().unwrap();
    });
    tell_second.send(first.clone()).unwrap();
    assert!(is_deadlock(&second.get().unwrap_err()));
    host.dispatcher.shutdown(LONG).unwrap();
}

#[test]
fn a_cap_is_seen_to_be_used_up_when_somebody_sleeps_by_a_waiting_jobs_context() {
    // Two threads for jobs.
    let host = host(9);
    let orchestrator = || {
        let (handing, handed) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let doer = doer_fn(move |context| {
            handing.send(JobContext::clone(context)).unwrap();
            gone.recv().unwrap();
            context
                .submit(job_fn(JobRequirements::none, |_, _| Ok(())))?
                .get()
                .map(drop)
        });
        let job = host.dispatcher.submit(&host.workflow, doer).unwrap();
        (job, go, handed.recv().unwrap())
    };
    let (first, go_first, context) = orchestrator();
    let (second, go_second, _) = orchestrator();
    go_first.send(()).unwrap();
    host.until_it_sleeps(&first);
    context.sleep(Duration::ZERO).unwrap();
    go_second.send(()).unwrap();
    let ends = [first.get(), second.get()];
    let refused: Vec<_> = ends.into_iter().filter_map(Result::err).collect();
    assert!(!refused.is_empty());
    for error in refused {
        assert!(error.to_string().contains("max_threads"), "{error}");
    }
    host.dispatcher.shutdown(LONG).unwrap();
}

#[test]
fn a_job_between_attempts_leaves_at_the_shutdown_whoever_slept_by_its_context() {
    let host = host(64);
    let (handing, handed) = mpsc::channel();
    let job = job_fn(JobRequirements::none, move |_, context| {
        handing.send(context.clone()).unwrap();
        Err::<(), _>(JobError::from(RetrySignal::transient("acme", "reset")))
    });
    let job = host.dispatcher.submit(&host.workflow, job).unwrap();
    let context: JobContext = handed.recv().unwrap();
    host.until_it_sleeps(&job);
    context.sleep(Duration::ZERO).unwrap();
    // The clock stands still: a shutdown that waits for the job would not return.
    let report = host.dispatcher.shutdown(LONG).unwrap();
    assert!(report.abandoned.is_empty());
    assert!(job.get().unwrap_err().is_cancelled());
}

#[test]
fn a_job_that_runs_what_another_one_bound_waits_on_record() {
    let host = host(64);
    type Work = Box<dyn FnOnce() -> Result<(), JobError> + Send>;
    // The runner runs what the binder bound, which waits for the last one.
    let (last, tell_last, _) = waits_for_another(&host);
    let (bind, bound) = mpsc::channel::<Work>();
    let (hold, held) = mpsc::channel::<()>();
    let target = last.clone();
    let binder = doer_fn(move |context| {
        let target = target.clone();
        let work = context.bind(move || target.get().map(drop));
        bind.send(Box::new(work)).unwrap();
        held.recv().unwrap();
        Ok(())
    });
    let binder = host.dispatcher.submit(&host.workflow, binder).unwrap();
    let runner = doer_fn(move |_| bound.recv().unwrap()());
    let runner = host.dispatcher.submit(&host.workflow, runner).unwrap();
    // It sleeps where the binder's signals reach it.
    host.until_it_sleeps(&binder);
    tell_last.send(runner.clone()).unwrap();
    let error = last.get().unwrap_err();
    assert!(is_deadlock(&error), "{error}");
    assert!(is_deadlock(&runner.get().unwrap_err()));
    hold.send(()).unwrap();
    binder.get().unwrap();
    host.dispatcher.shutdown(LONG).unwrap();
}
