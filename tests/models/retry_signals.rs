//! What a provider's "no" means for the job, the model's account and the next attempt.

use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use nucleo_runtime::events::{EventKind, RetryEvent};
use nucleo_runtime::guard::{AdmissionGuard, AdmissionRequest, Gate, Guard, Guards};
use nucleo_runtime::llm::{ScriptedClient, Step};
use nucleo_runtime::models::{Catalog, Depth, Grade, ModelSpec, OutputSize};
use nucleo_runtime::testing::{Fault, FaultyProvider, quiesce};
use nucleo_runtime::{
    ErrorKind, Job, JobContext, JobError, JobHandle, JobRequirements, JobResources, Metadata,
    MetadataValue, RetrySignal, job_fn,
};

use crate::support::{ANSWER, Run, asks, question, quota};

fn failing(faults: impl IntoIterator<Item = Fault>) -> (Run, FaultyProvider) {
    let provider = FaultyProvider::new("scripted", "42").fails(faults);
    let run = Run::new(|builder| {
        builder
            .catalog(Catalog::starter())
            .provider(provider.clone())
    });
    (run, provider)
}

// case F14
// case RTY-19
#[test]
fn every_fault_of_a_provider_is_answered_as_it_should_be() {
    for (fault, retried) in [
        (Fault::RateLimit, Some(EventKind::RateLimitRetry)),
        (
            Fault::RateLimitFor(Duration::from_secs(45)),
            Some(EventKind::RateLimitRetry),
        ),
        (Fault::Overload, Some(EventKind::TransientRetry)),
        (Fault::ServerError, Some(EventKind::TransientRetry)),
        (Fault::NoConnection, Some(EventKind::TransientRetry)),
        (Fault::DiesMidStream, Some(EventKind::TransientRetry)),
        (Fault::Truncation, Some(EventKind::OutputTruncationRetry)),
    ] {
        let (run, provider) = failing([fault.clone()]);
        let handle = run.ask(Grade::Small);
        run.pass_retry(&mut 0);
        assert_eq!(*handle.get().unwrap(), "starter-small: 42", "{fault:?}");
        assert_eq!(provider.calls(), 2);
        let kinds: Vec<_> = run.retries().iter().map(RetryEvent::kind).collect();
        assert_eq!(kinds, Vec::from_iter(retried), "{fault:?}");
    }
    for (fault, kind) in [
        (Fault::OutOfMoney, "QuotaExhausted"),
        (Fault::ContextTooLong, "ContextOverflow"),
        (Fault::Unauthorized, "Unauthorized"),
        (Fault::Refusal, "ProviderRefusal"),
        (Fault::Unreadable, "ExternalService"),
    ] {
        let (run, provider) = failing([fault.clone()]);
        let error = run.ask(Grade::Small).get().unwrap_err();
        assert_eq!(error.kind().name(), kind, "{fault:?}");
        assert_eq!(provider.calls(), 1, "{fault:?} is final at the first");
        assert_eq!(run.retries().len(), 0);
    }
}

#[test]
fn a_stream_that_dies_after_its_first_piece_is_not_asked_for_again() {
    let (run, provider) = failing([Fault::DiesMidStream]);
    let pieces = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&pieces);
    let job = job_fn(needs, move |resources, _| {
        let heard = Arc::clone(&heard);
        resources
            .model(ANSWER)?
            .client()
            .stream(&question(), move |piece| {
                heard.lock().unwrap().push(piece.text.clone());
            })
            .map(drop)
    });
    let error = run.submit(job).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    assert!(error.to_string().contains("mid-stream"), "{error}");
    assert_eq!(*pieces.lock().unwrap(), ["so far"]);
    assert_eq!(provider.calls(), 1);
}

fn needs() -> JobRequirements {
    JobRequirements::none().model(
        ANSWER,
        Grade::Small,
        Depth::Immediate,
        10,
        OutputSize::Verdict,
    )
}

// case F12
#[test]
fn a_retry_after_is_the_floor_of_the_wait() {
    let (run, _) = failing([Fault::RateLimitFor(Duration::from_secs(45))]);
    let handle = run.ask(Grade::Small);
    let delay = run.pass_retry(&mut 0).as_secs();
    assert!((45..=70).contains(&delay), "{delay}");
    handle.get().unwrap();
}

#[test]
fn a_retry_after_that_is_too_long_is_not_waited_for() {
    let asks_for = |seconds| Fault::RateLimitFor(Duration::from_secs(seconds));
    let (run, provider) = failing([asks_for(901)]);
    let error = run.ask(Grade::Small).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    assert!(error.to_string().contains("901s"), "{error}");
    assert_eq!(provider.calls(), 1);

    let provider = FaultyProvider::new("scripted", "42").fails([asks_for(61), asks_for(60)]);
    let run = Run::new(|builder| {
        builder
            .catalog(Catalog::starter())
            .provider(provider)
            .max_retry_after(Duration::from_secs(60))
    });
    let error = run.ask(Grade::Small).get().unwrap_err();
    assert!(error.to_string().contains("61s"), "{error}");
    let handle = run.ask(Grade::Small);
    run.pass_retry(&mut 0);
    handle.get().unwrap();
}

// case F11
#[test]
fn the_retries_of_jobs_that_were_refused_together_do_not_come_together() {
    let (run, _) = failing(vec![Fault::RateLimit; 40]);
    let handles: Vec<_> = (0..40).map(|_| run.ask(Grade::Small)).collect();
    let mut found = 0;
    run.told.wait_until(|event| {
        found += usize::from(event.kind() == EventKind::RateLimitRetry);
        found == 40
    });
    let delays: HashSet<_> = run.retries().iter().filter_map(RetryEvent::delay).collect();
    assert_eq!(delays.len(), 40, "each waits for itself");
    let (first, last) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
    assert!(
        *last - *first > Duration::from_secs(10),
        "{first:?} {last:?}"
    );
    run.clock.advance(*last);
    JobHandle::join_all(&handles).unwrap();
}

// case F10
// case RTY-20
#[test]
fn one_incident_slows_an_account_to_its_cap_at_most_and_it_recovers() {
    let (all_in, in_flight) = mpsc::channel();
    let gate = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let (waits, calls) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let client = ScriptedClient::from_fn(move |_| {
        if calls.fetch_add(1, Ordering::SeqCst) >= 50 {
            return Step::reply("42");
        }
        all_in.send(()).unwrap();
        let (open, opened) = &*waits;
        let mut is_open = open.lock().unwrap();
        while !*is_open {
            is_open = opened.wait(is_open).unwrap();
        }
        Step::rate_limit()
    });
    let spec = ModelSpec::new("m", "acme", quota(10_000_000, 100_000)).unwrap();
    let run = Run::new(|builder| builder.model(spec, Arc::new(client)));
    let handles: Vec<_> = (0..50).map(|_| run.submit(once())).collect();
    for _ in 0..50 {
        in_flight.recv().unwrap();
    }
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    for handle in &handles {
        handle.get().unwrap_err();
    }
    let bucket = run.dispatcher.limiters().bucket_of("m").unwrap();
    assert_eq!(bucket.throttle(), 9.0);
    let now = run.dispatcher.clock().now();
    bucket.record_backpressure(1_000, now);
    bucket.record_429(now);
    assert_eq!(bucket.throttle(), 9.0, "it saturates");
    // Slowed down tenfold it still goes on, and after five quiet minutes every success counts.
    run.clock.advance(Duration::from_secs(5 * 60));
    for left in (0..18).rev() {
        run.ask(Grade::Small).get().unwrap();
        assert_eq!(bucket.throttle(), f64::from(left) * 0.5);
    }
    bucket.record_429(now);
    bucket.record_backpressure(3, now);
    assert_eq!(bucket.throttle(), 2.0);
}

/// A job that asks once and is not run again.
fn once() -> impl Job<Output = String> {
    struct Once<J>(J);
    impl<J: Job<Output = String>> Job for Once<J> {
        type Output = String;
        fn upstream_retries(&self) -> u32 {
            0
        }
        fn timeout(&self) -> Option<Duration> {
            self.0.timeout()
        }
        fn requirements(&self) -> JobRequirements {
            self.0.requirements()
        }
        fn execute(
            &mut self,
            resources: &JobResources,
            context: &JobContext,
        ) -> Result<String, JobError> {
            self.0.execute(resources, context)
        }
    }
    Once(asks(Grade::Small))
}

/// Answers its ceiling, cut off at first.
fn cut_off_at_first(times: usize) -> ScriptedClient {
    let calls = AtomicUsize::new(0);
    ScriptedClient::from_fn(move |call| {
        if calls.fetch_add(1, Ordering::SeqCst) < times {
            return Step::truncated();
        }
        Step::reply(call.options.max_output_tokens.to_string())
    })
}

#[test]
fn an_answer_that_was_cut_off_is_asked_for_again_with_the_larger_budget() {
    let spec = || ModelSpec::new("m", "acme", quota(10_000_000, 100_000)).unwrap();
    let run = Run::new(|builder| builder.model(spec(), Arc::new(cut_off_at_first(1))));
    // A verdict of 1 024 tokens at first, then twice that.
    assert_eq!(*run.ask(Grade::Small).get().unwrap(), "m: 2048");
    let retries = run.retries();
    let [RetryEvent::OutputTruncation(retry)] = &retries[..] else {
        panic!("{retries:?}");
    };
    assert_eq!((retry.previous, retry.next), (1_024, 2_048));

    let run = Run::new(|builder| builder.model(spec(), Arc::new(cut_off_at_first(2))));
    let error = run.ask(Grade::Small).get().unwrap_err();
    assert!(
        error.to_string().contains("rebuilt its conversation"),
        "{error}"
    );

    let narrow = spec().limits(100_000, 1_024).unwrap();
    let run = Run::new(|builder| builder.model(narrow, Arc::new(cut_off_at_first(1))));
    let error = run.ask(Grade::Small).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    assert!(
        error.to_string().contains("no larger output budget"),
        "{error}"
    );
    assert!(error.retry_signal().is_none() && error.source().is_none());
}

#[test]
fn a_reply_that_does_not_parse_is_asked_for_again() {
    let (run, provider) = failing([]);
    let mut attempt = 0;
    let job = job_fn(needs, move |resources, _| {
        attempt += 1;
        let answer = resources.model(ANSWER)?.client().respond(&question())?;
        match (attempt, answer.text().parse::<u32>()) {
            (3, Ok(number)) => Ok(number),
            _ => Err(RetrySignal::correction(
                "starter-small",
                attempt,
                JobError::correctable("no number"),
            )
            .into()),
        }
    });
    assert_eq!(*run.submit(job).get().unwrap(), 42);
    assert_eq!(provider.calls(), 3);
    let corrections: Vec<_> = run.retries().iter().map(RetryEvent::attempt).collect();
    assert_eq!(corrections, [1, 2]);
}

#[derive(Clone)]
struct Counting(Arc<AtomicUsize>);

impl Guard for Counting {}

impl AdmissionGuard for Counting {
    fn judge(&self, _: &AdmissionRequest, _: &Gate<'_>) -> Result<(), JobError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Guarded(Arc<AtomicUsize>);

impl Job for Guarded {
    type Output = ();

    fn guards(&self) -> Guards {
        Guards::none().admission(Counting(Arc::clone(&self.0)))
    }

    fn requirements(&self) -> JobRequirements {
        needs()
    }

    fn execute(&mut self, resources: &JobResources, _: &JobContext) -> Result<(), JobError> {
        resources.model(ANSWER)?.client().respond(&question())?;
        Ok(())
    }
}

// case RTY-12
#[test]
fn the_guards_of_the_input_run_once_for_all_attempts() {
    let (run, provider) = failing([Fault::RateLimit]);
    let ran = Arc::new(AtomicUsize::new(0));
    let handle = run.submit(Guarded(Arc::clone(&ran)));
    run.pass_retry(&mut 0);
    handle.get().unwrap();
    assert_eq!((ran.load(Ordering::SeqCst), provider.calls()), (1, 2));
    quiesce(&run.dispatcher);
    let told = run.told.events_of(handle.job_id());
    let snapshot = told.last().unwrap().snapshot().unwrap();
    let judged = snapshot.metadata().get(Metadata::GUARDS_INPUT);
    assert_eq!(judged.and_then(MetadataValue::as_integer), Some(1));
}

#[test]
fn the_last_signal_of_a_spent_budget_says_where_and_when_it_was_raised() {
    let (run, provider) = failing(vec![Fault::Overload; 4]);
    let handle = run.ask(Grade::Small);
    let mut seen = 0;
    for _ in 0..3 {
        run.pass_retry(&mut seen);
        // The throttle of the account holds the next attempt back.
        quiesce(&run.dispatcher);
        run.clock.advance(Duration::from_secs(60));
    }
    let error = handle.get().unwrap_err();
    let last = error.source().unwrap().downcast_ref::<JobError>().unwrap();
    let Some(RetrySignal::Overload(signal)) = last.retry_signal() else {
        panic!("{last}");
    };
    assert_eq!(
        (signal.attempt, signal.model.as_deref()),
        (4, Some("starter-small"))
    );
    assert_eq!(
        error.upstream_failure().map(|failure| failure.status),
        Some(529)
    );
    assert_eq!(provider.calls(), 4);
}
