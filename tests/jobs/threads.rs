//! From accepted to started: queues, threads and the cap.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nucleo_runtime::events::EventFilter;
use nucleo_runtime::testing::EventRecorder;
use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, JobResources, JobType,
    Workflow, doer_fn, job_fn,
};

use crate::support::{Held, Host, held};

/// A dispatcher in which one root runs at a time: four threads are its own, three are kept in
/// reserve, one is the subscription's.
fn narrow() -> Host {
    Host::with(|builder| builder.max_threads(9))
}

/// Occupies the one thread that roots have.
fn block(host: &Host) -> (JobHandle<&'static str>, Held) {
    let (job, hold) = held(JobRequirements::none);
    let blocking = host.submit(job);
    hold.wait_until_running();
    (blocking, hold)
}

/// A job that notes its name when it executes.
struct Noting {
    name: &'static str,
    priority: i32,
    timeout: Duration,
    at_once: bool,
    order: Arc<Mutex<Vec<&'static str>>>,
}

impl Job for Noting {
    type Output = ();

    fn priority(&self) -> i32 {
        self.priority
    }

    fn timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }

    fn requirements(&self) -> JobRequirements {
        let requirements = JobRequirements::none();
        if self.at_once {
            requirements.run_at_once()
        } else {
            requirements
        }
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        self.order.lock().unwrap().push(self.name);
        Ok(())
    }
}

/// The order in which jobs of these names, priorities and routings start once a thread is there.
fn order_of(timeout: Duration, jobs: &[(&'static str, i32, bool)]) -> Vec<&'static str> {
    let host = narrow();
    let (blocking, hold) = block(&host);
    let order = Arc::new(Mutex::new(Vec::new()));
    let handles: Vec<_> = jobs
        .iter()
        .map(|&(name, priority, at_once)| {
            host.submit(Noting {
                name,
                priority,
                timeout,
                at_once,
                order: Arc::clone(&order),
            })
        })
        .collect();
    assert_eq!(host.dispatcher.queue_len(), jobs.len());
    hold.release();
    blocking.get().unwrap();
    JobHandle::join_all(&handles).unwrap();
    assert_eq!(host.dispatcher.queue_len(), 0);
    order.lock().unwrap().clone()
}

// case SUB-11
// case SUB-12
#[test]
fn short_jobs_start_by_priority_and_by_submission_among_equals() {
    let order = order_of(
        Duration::from_secs(5),
        &[
            ("low", 1, false),
            ("high", 9, false),
            ("also low", 1, false),
            ("also high", 9, false),
        ],
    );
    assert_eq!(order, ["high", "also high", "low", "also low"]);
}

#[test]
fn long_jobs_start_in_the_order_of_their_submission() {
    let order = order_of(
        Duration::from_millis(5_001),
        &[("low", 1, false), ("high", 9, false), ("middle", 5, false)],
    );
    assert_eq!(order, ["low", "high", "middle"]);
}

#[test]
fn a_job_that_declines_queueing_goes_to_the_front_of_its_line() {
    for timeout in [Duration::from_secs(5), Duration::from_secs(60)] {
        let order = order_of(
            timeout,
            &[("first", 9, false), ("second", 9, false), ("now", 0, true)],
        );
        assert_eq!(order, ["now", "first", "second"]);
    }
}

#[test]
fn a_job_that_declines_queueing_has_a_thread_at_once_where_one_is_free() {
    let host = Host::new();
    let (job, hold) = held(|| JobRequirements::none().run_at_once());
    let handle = host.submit(job);
    assert_eq!(host.dispatcher.queue_len(), 0);
    hold.wait_until_running();
    hold.release();
    handle.get().unwrap();
}

#[test]
fn a_job_cancelled_in_its_line_leaves_it_and_never_runs() {
    let host = narrow();
    let (blocking, hold) = block(&host);
    let order = Arc::new(Mutex::new(Vec::new()));
    let submit = |name, timeout| {
        host.submit(Noting {
            name,
            priority: 0,
            timeout: Duration::from_secs(timeout),
            at_once: false,
            order: Arc::clone(&order),
        })
    };
    let [a, b, c] = [submit("a", 60), submit("b", 5), submit("c", 60)];
    assert_eq!(host.dispatcher.queue_len(), 3);
    assert!(a.cancel("not this one"));
    assert!(b.cancel("nor this one"));
    assert_eq!(host.dispatcher.queue_len(), 1);
    for cancelled in [&a, &b] {
        assert!(cancelled.get().unwrap_err().is_cancelled());
        assert!(!cancelled.cancel("again"));
    }
    hold.release();
    blocking.get().unwrap();
    c.get().unwrap();
    assert_eq!(*order.lock().unwrap(), ["c"]);
}

// case SUB-12
#[test]
fn two_thousand_roots_share_a_few_threads_and_none_is_lost() {
    let dispatcher = JobDispatcher::builder().max_threads(16).build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "many").unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = (0..2_000)
        .map(|n| {
            let ran = Arc::clone(&ran);
            let timeout = Duration::from_secs(if n % 2 == 0 { 5 } else { 60 });
            let job = job_fn(JobRequirements::none, move |_, _| {
                ran.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
            .timeout(Some(timeout));
            dispatcher.submit(&workflow, job).unwrap()
        })
        .collect();
    JobHandle::join_all(&handles).unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 2_000);
    let threads = dispatcher.threads();
    assert_eq!(threads.cap, 16);
    assert!(threads.peak <= 16, "{threads:?}");
    assert_eq!(dispatcher.queue_len(), 0);
}

#[test]
fn children_of_running_orchestrators_find_threads_when_roots_do_not() {
    let host = Host::with(|builder| builder.max_threads(16));
    let orchestrators: Vec<_> = (0..200)
        .map(|_| {
            host.submit(doer_fn(|context| {
                let children = (0..3)
                    .map(|_| context.submit(job_fn(JobRequirements::none, |_, _| Ok(1))))
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(JobHandle::join_all(&children)?.len())
            }))
        })
        .collect();
    for orchestrator in orchestrators {
        assert_eq!(*orchestrator.get().unwrap(), 3);
    }
    assert!(host.dispatcher.threads().peak <= 16);
}

#[test]
fn guards_pass_a_line_of_blocked_roots() {
    struct Guard;
    impl Job for Guard {
        type Output = ();
        fn job_type(&self) -> JobType {
            JobType::Guardrail
        }
        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            Ok(())
        }
    }
    // Roots fill three quarters of the nine threads that are left; the guard takes one more.
    let host = Host::with(|builder| builder.max_threads(17));
    let held: Vec<_> = (0..9)
        .map(|_| {
            let (job, hold) = held(JobRequirements::none);
            (host.submit(job), hold)
        })
        .collect();
    assert!(host.dispatcher.queue_len() > 0, "roots are blocked");
    host.submit(Guard).get().unwrap();
    assert!(host.dispatcher.queue_len() > 0, "and still are");
    for (_, hold) in &held {
        hold.release();
    }
    for (handle, _) in held {
        handle.get().unwrap();
    }
}

#[test]
fn a_thread_is_named_after_its_job() {
    let host = Host::new();
    let name = |prefix: &str| {
        let job = job_fn(JobRequirements::none, |_, _| {
            Ok(thread::current().name().map(str::to_owned))
        })
        .named(prefix);
        host.submit(job).get().unwrap().as_ref().clone().unwrap()
    };
    assert!(name("ab").starts_with("ab-"));
    assert_eq!(name("a\0b\0-0123456789abcdef"), "ab-0123456789ab");
    assert_eq!(name("grüße-aus-köln-heute"), "grüße-aus-kö");
}

#[test]
fn every_job_has_a_thread_of_its_own() {
    let host = Host::new();
    let runs: Vec<_> = (0..20)
        .map(|_| {
            let job = job_fn(JobRequirements::none, |_, _| Ok(thread::current().id()));
            host.submit(job)
        })
        .collect();
    let ids: std::collections::HashSet<_> = JobHandle::join_all(&runs)
        .unwrap()
        .iter()
        .map(|id| **id)
        .collect();
    assert_eq!(ids.len(), 20);
}

#[test]
fn the_stack_is_as_large_as_the_builder_says() {
    fn deep(left: usize) -> u8 {
        let page = [left as u8; 4_096];
        let below = if left == 0 { 0 } else { deep(left - 1) };
        std::hint::black_box(&page)[left % 4_096].wrapping_add(below)
    }
    // Eight mebibytes of frames, four times what the default has.
    let host = Host::with(|builder| builder.stack_size(32 * 1024 * 1024));
    let job = job_fn(JobRequirements::none, |_, _| Ok(deep(2_000)));
    host.submit(job).get().unwrap();
}

#[test]
fn a_subscription_at_the_cap_is_refused() {
    let host = narrow();
    let (blocking, hold) = block(&host);
    let refused = host
        .dispatcher
        .subscribe(EventFilter::all(), EventRecorder::new())
        .unwrap_err();
    assert!(refused.to_string().contains("all 9 threads"), "{refused}");
    assert!(
        blocking
            .register_workflow_observer(EventRecorder::new())
            .is_err()
    );
    hold.release();
    blocking.get().unwrap();
}

#[test]
fn settings_that_cannot_work_are_named() {
    for (builder, field) in [
        (JobDispatcher::builder().max_threads(7), "max_threads"),
        (JobDispatcher::builder().stack_size(1_024), "stack_size"),
        (
            JobDispatcher::builder().http_connections(0),
            "http_connections",
        ),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.field, field);
        assert!(!error.rule.is_empty());
    }
    // The least that works does work.
    let dispatcher = JobDispatcher::builder().max_threads(8).build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "test").unwrap();
    let job = job_fn(JobRequirements::none, |_, _| Ok(()));
    dispatcher.submit(&workflow, job).unwrap().get().unwrap();
}
