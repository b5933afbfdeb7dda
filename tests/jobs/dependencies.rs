//! Jobs that run after others.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nucleo_runtime::events::{Event, EventKind, LifecycleEvent};
use nucleo_runtime::testing;
use nucleo_runtime::{
    ErrorKind, Job, JobError, JobRequirements, JobState, Submission, doer_fn, job_fn,
};

use crate::support::{Host, held};

fn saying(word: &'static str) -> impl Job<Output = &'static str> {
    job_fn(JobRequirements::none, move |_, _| Ok(word))
}

fn failing() -> impl Job<Output = &'static str> {
    job_fn(JobRequirements::none, |_, _| {
        Err(JobError::correctable("the producer failed"))
    })
}

/// A consumer that says whether it executed, and what it depended on failed with.
fn tolerant(ran: &Arc<AtomicBool>) -> impl Job<Output = Vec<String>> {
    let ran = Arc::clone(ran);
    job_fn(
        || JobRequirements::none().tolerate_dependency_failures(),
        move |_, context| {
            ran.store(true, Ordering::SeqCst);
            let mut said: Vec<_> = context
                .dependency_results()
                .iter()
                .map(|(snapshot, result)| {
                    let word = result.downcast_ref::<&'static str>().unwrap();
                    format!("{}: {word}", snapshot.state())
                })
                .collect();
            said.extend(
                context
                    .dependency_errors()
                    .iter()
                    .map(|(snapshot, error)| format!("{}: {error}", snapshot.state())),
            );
            Ok(said)
        },
    )
}

fn after<S, K>(host: &Host, job: S) -> Submission<S, K>
where
    S: nucleo_runtime::Submit<K>,
{
    host.dispatcher.submit_with(&host.workflow, job)
}

// case DEP-01
#[test]
fn a_consumer_finds_the_result_of_its_producer() {
    let host = Host::new();
    let producer = host.submit(saying("alpha"));
    let consumer = job_fn(JobRequirements::none, |_, context| {
        let word = context.single_dependency_result::<&'static str>()?;
        Ok(format!("{word}:consumed"))
    });
    let consumer = after(&host, consumer).after(&producer).submit().unwrap();
    assert_eq!(*consumer.get().unwrap(), "alpha:consumed");
}

#[test]
fn a_result_is_asked_for_by_its_handle_and_by_no_other() {
    let host = Host::new();
    let (one, two) = (host.submit(saying("one")), host.submit(saying("two")));
    let other = host.submit(saying("other"));
    let asked = (one.clone(), two.clone(), other.clone());
    let consumer = job_fn(JobRequirements::none, move |_, context| {
        let stranger = context.dependency(&asked.2).unwrap_err();
        assert!(matches!(stranger.kind(), ErrorKind::IllegalState { .. }));
        let several = context.single_dependency_result::<&'static str>();
        assert!(matches!(
            several.unwrap_err().kind(),
            ErrorKind::IllegalState { .. }
        ));
        Ok([
            *context.dependency(&asked.0)?,
            *context.dependency(&asked.1)?,
        ])
    });
    let consumer = after(&host, consumer)
        .after(&one)
        .after(&two)
        .submit()
        .unwrap();
    assert_eq!(*consumer.get().unwrap(), ["one", "two"]);
    let alone = host.submit(job_fn(JobRequirements::none, |_, context| {
        Ok(context.single_dependency_result::<()>().is_err())
    }));
    assert!(*alone.get().unwrap());
    other.get().unwrap();
}

// case DEP-02
// case DEP-07
#[test]
fn a_failed_dependency_fails_the_job_before_it_runs() {
    let host = Host::new();
    let producer = host.submit(failing());
    let ran = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&ran);
    let consumer = job_fn(JobRequirements::none, move |_, _| {
        noted.store(true, Ordering::SeqCst);
        Ok(())
    });
    let consumer = after(&host, consumer).after(&producer).submit().unwrap();
    let error = consumer.get().unwrap_err();
    let ErrorKind::DependencyFailed { dependency } = error.kind() else {
        panic!("{error:?}")
    };
    assert_eq!(dependency, producer.job_id());
    assert_eq!(
        error.source().unwrap().to_string(),
        "the producer failed",
        "the first cause stays"
    );
    assert!(!ran.load(Ordering::SeqCst));
    assert_eq!(consumer.snapshot().state(), JobState::Failed);
    assert_eq!(
        host.kinds(&consumer),
        [
            EventKind::JobScheduled,
            EventKind::DependencyFailure,
            EventKind::WorkflowComplete
        ]
    );
    let told = &host.events.events_of(consumer.job_id())[1];
    assert!(told.is_failure());
    assert!(told.terminal().is_none(), "outside of what a run ends with");
    let Event::Lifecycle(LifecycleEvent::DependencyFailure(failure)) = &**told else {
        panic!("{told:?}")
    };
    assert!(failure.error.is_some());
}

#[test]
fn a_failure_cascades_with_its_first_cause() {
    let host = Host::new();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    let second = after(&host, failing()).after(&first).submit().unwrap();
    let third = after(&host, saying("third"))
        .after(&second)
        .submit()
        .unwrap();
    let fourth = after(&host, saying("fourth"))
        .after(&third)
        .submit()
        .unwrap();
    hold.release();
    let error = fourth.get().unwrap_err();
    let mut chain: Vec<&(dyn Error + 'static)> = vec![&error];
    while let Some(source) = chain[chain.len() - 1].source() {
        chain.push(source);
    }
    assert_eq!(chain.last().unwrap().to_string(), "the producer failed");
    assert_eq!(chain.len(), 3, "fourth, third, and why second failed");
    for handle in [&third, &fourth] {
        assert_eq!(handle.snapshot().state(), JobState::Failed);
    }
}

// case DEP-04
// case DEP-06
#[test]
fn a_tolerant_job_runs_and_finds_results_and_failures_in_declared_order() {
    let host = Host::new();
    let ran = Arc::new(AtomicBool::new(false));
    let (slow, hold) = held(JobRequirements::none);
    let slow = host.submit(slow);
    let quick = host.submit(saying("quick"));
    let failed = host.submit(failing());
    let consumer = after(&host, tolerant(&ran))
        .after(&slow)
        .after(&failed)
        .after(&quick)
        .after(&slow)
        .submit()
        .unwrap();
    quick.get().unwrap();
    failed.get().unwrap_err();
    testing::quiesce(&host.dispatcher);
    assert!(!ran.load(Ordering::SeqCst), "one of them has not settled");
    hold.release();
    assert_eq!(
        *consumer.get().unwrap(),
        [
            "COMPLETED: held",
            "COMPLETED: quick",
            "FAILED: the producer failed"
        ]
    );
}

#[test]
fn a_tolerant_orchestrator_runs_as_well() {
    struct Tolerant;
    impl nucleo_runtime::Doer for Tolerant {
        type Output = usize;
        fn tolerates_dependency_failures(&self) -> bool {
            true
        }
        fn execute(
            &mut self,
            context: &nucleo_runtime::OrchestratorContext,
        ) -> Result<usize, JobError> {
            Ok(context.dependency_errors().len())
        }
    }
    let host = Host::new();
    let failed = host.submit(failing());
    let doer = after(&host, Tolerant).after(&failed).submit().unwrap();
    assert_eq!(*doer.get().unwrap(), 1);
}

#[test]
fn a_dependency_that_settled_before_the_submission_holds_nobody_up() {
    let host = Host::new();
    let done = host.submit(saying("done"));
    done.get().unwrap();
    let consumer = after(&host, saying("next")).after(&done).submit().unwrap();
    assert_eq!(*consumer.get().unwrap(), "next");

    let refused = host
        .dispatcher
        .submit(&done, saying("born failed"))
        .unwrap();
    let consumer = after(&host, saying("never"))
        .after(&refused)
        .submit()
        .unwrap();
    let error = consumer.get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DependencyFailed { .. }));
}

#[test]
fn a_job_that_waits_for_its_dependencies_has_no_thread_and_holds_nothing() {
    let host = Host::new();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    hold.wait_until_running();
    let before = host.dispatcher.threads().live;
    let waiting: Vec<_> = (0..100)
        .map(|_| after(&host, saying("next")).after(&first).submit().unwrap())
        .collect();
    testing::quiesce(&host.dispatcher);
    assert_eq!(host.dispatcher.threads().live, before);
    assert_eq!(host.dispatcher.job_count(), 101);
    assert_eq!(waiting[0].snapshot().state(), JobState::Scheduled);
    hold.release();
    for handle in waiting {
        assert_eq!(*handle.get().unwrap(), "next");
    }
}

#[test]
fn a_job_cancelled_while_it_waits_for_a_dependency_settles_at_once() {
    let host = Host::new();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    let ran = Arc::new(AtomicBool::new(false));
    let waiting = after(&host, tolerant(&ran)).after(&first).submit().unwrap();
    assert!(waiting.cancel("no need"));
    let error = waiting.get().unwrap_err();
    assert!(error.is_cancelled());
    assert!(!waiting.cancel("again"), "it has settled");
    hold.release();
    first.get().unwrap();
    assert_eq!(
        host.kinds(&waiting),
        [
            EventKind::JobScheduled,
            EventKind::JobCancelled,
            EventKind::WorkflowComplete
        ]
    );
    assert!(!ran.load(Ordering::SeqCst));
    assert_eq!(host.dispatcher.queue_len(), 0);
    assert_eq!(host.dispatcher.job_count(), 0);
}

#[test]
fn a_dependent_of_a_cancelled_job_has_a_failed_dependency() {
    let host = Host::new();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    let second = after(&host, saying("second"))
        .after(&first)
        .submit()
        .unwrap();
    let third = after(&host, saying("third"))
        .after(&second)
        .submit()
        .unwrap();
    assert!(second.cancel("not this one"));
    let error = third.get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DependencyFailed { .. }));
    let cause = error.source().unwrap().downcast_ref::<JobError>().unwrap();
    assert!(cause.is_cancelled());
    hold.release();
    first.get().unwrap();
}

#[test]
fn a_dependency_may_be_a_job_of_another_dispatcher() {
    let (host, other) = (Host::new(), Host::new());
    let (first, hold) = held(JobRequirements::none);
    let first = other.submit(first);
    let second = job_fn(JobRequirements::none, |_, context| {
        Ok(*context.single_dependency_result::<&'static str>()?)
    });
    let second = after(&host, second).after(&first).submit().unwrap();
    hold.release();
    assert_eq!(*second.get().unwrap(), "held");
}

#[test]
fn a_fan_in_of_a_thousand_runs_once() {
    let host = Host::new();
    let parts: Vec<_> = (0..1_000)
        .map(|n| host.submit(job_fn(JobRequirements::none, move |_, _| Ok(n))))
        .collect();
    let sum = job_fn(JobRequirements::none, |_, context| {
        let results = context.dependency_results();
        Ok(results
            .iter()
            .map(|(_, n)| *n.downcast_ref::<i32>().unwrap())
            .sum::<i32>())
    });
    let mut submission = after(&host, sum);
    for part in &parts {
        submission = submission.after(part);
    }
    let sum = submission.submit().unwrap();
    assert_eq!(*sum.get().unwrap(), 499_500);
    assert_eq!(
        host.kinds(&sum)
            .iter()
            .filter(|kind| **kind == EventKind::JobStarted)
            .count(),
        1
    );
}

#[test]
fn a_chain_lets_go_of_what_came_before_as_it_goes() {
    struct Kept(mpsc::Sender<usize>, usize);
    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }
    let host = Host::new();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    let (dropped, drops) = mpsc::channel();
    let link = |n| {
        let dropped = dropped.clone();
        job_fn(JobRequirements::none, move |_, _| {
            Ok(Kept(dropped.clone(), n))
        })
    };
    let mut last = after(&host, link(0)).after(&first).submit().unwrap();
    for n in 1..100 {
        last = after(&host, link(n)).after(&last).submit().unwrap();
    }
    hold.release();
    last.get().unwrap();
    // With it go the events that were heard, which share the results.
    drop(host);
    let mut gone: Vec<_> = drops.iter().take(99).collect();
    gone.sort_unstable();
    assert_eq!(gone, (0..99).collect::<Vec<_>>());
    drop(last);
    assert_eq!(drops.recv(), Ok(99));
}

#[test]
fn a_long_chain_of_queued_jobs_is_cancelled_at_shutdown_whatever_its_length() {
    let host = Host::new();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    hold.wait_until_running();
    let mut chain = vec![after(&host, saying("link")).after(&first).submit().unwrap()];
    for _ in 0..20_000 {
        let next = after(&host, saying("link"))
            .after(chain.last().unwrap())
            .submit()
            .unwrap();
        chain.push(next);
    }
    let dispatcher = host.dispatcher.clone();
    let shutdown = std::thread::spawn(move || dispatcher.shutdown(Duration::from_secs(60)));
    for handle in &chain {
        assert!(handle.get().is_err());
    }
    hold.release();
    first.get().unwrap();
    shutdown.join().unwrap().unwrap();
    let last = chain.pop().unwrap();
    drop(chain);
    // The whole of it hangs by its last link now.
    drop(last);
}

#[test]
fn children_depend_on_each_other() {
    let host = Host::new();
    let parent = host.submit(doer_fn(|context| {
        let first = context.submit(saying("a"))?;
        let second = context
            .submit_with(job_fn(JobRequirements::none, |_, context| {
                Ok(*context.single_dependency_result::<&'static str>()?)
            }))
            .after(&first)
            .submit()?;
        Ok(*second.get()?)
    }));
    assert_eq!(*parent.get().unwrap(), "a");
}
