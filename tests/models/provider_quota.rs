//! A provider's quota is kept, whatever the catalog says of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::events::{Event, EventFamily, EventFilter, EventKind, LimiterChange};
use nucleo_runtime::llm::{ScriptedClient, Step};
use nucleo_runtime::models::{Grade, ModelSpec};
use nucleo_runtime::testing::quiesce;
use nucleo_runtime::{Clock, JobHandle, ManualClock, Workflow};

use crate::support::{Run, asks, quota};

/// A provider that allows so many requests a minute: as many at once, and then one for each that its
/// share of a minute brings.
struct Provider {
    clock: Arc<Mutex<Option<ManualClock>>>,
    per_minute: u64,
    /// In requests times nanoseconds of a minute, and since when.
    level: Mutex<Option<(u64, Instant)>>,
    calls: AtomicU64,
    refused: AtomicU64,
    last: Mutex<Option<Instant>>,
}

const MINUTE: u64 = 60_000_000_000;

impl Provider {
    fn allowing(per_minute: u64) -> Arc<Self> {
        Arc::new(Self {
            clock: Arc::default(),
            per_minute,
            level: Mutex::default(),
            calls: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            last: Mutex::default(),
        })
    }

    fn answer(&self) -> Step {
        let now = self.clock.lock().unwrap().as_ref().unwrap().now();
        let full = self.per_minute * MINUTE;
        let allowed = {
            let mut level = self.level.lock().unwrap();
            let (left, since) = level.unwrap_or((full, now));
            let refilled = now.duration_since(since).as_nanos() as u64 * self.per_minute;
            let left = left.saturating_add(refilled).min(full);
            let allowed = left >= MINUTE;
            *level = Some((if allowed { left - MINUTE } else { left }, now));
            allowed
        };
        *self.last.lock().unwrap() = Some(now);
        self.calls.fetch_add(1, Ordering::SeqCst);
        if allowed {
            return Step::reply("42");
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        Step::rate_limit()
    }
}

/// A run on one model with this quota in the catalog, and the grants that its account gave.
fn run_on(provider: &Arc<Provider>, rpm: u32) -> (Run, Arc<AtomicU64>) {
    let spec = ModelSpec::new("m", "acme", quota(100_000_000, rpm)).unwrap();
    let serving = Arc::clone(provider);
    let client = ScriptedClient::from_fn(move |_| serving.answer());
    let run = Run::new(|builder| builder.model(spec, Arc::new(client)));
    *provider.clock.lock().unwrap() = Some(run.clock.clone());
    let grants = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&grants);
    let filter = EventFilter::all().family(EventFamily::Limiter);
    let count = move |event: &Arc<Event>| {
        if let Event::Limiter(limiter) = &**event
            && &*limiter.account == "m"
            && matches!(
                limiter.change,
                LimiterChange::GrantedImmediate | LimiterChange::GrantedFromHold
            )
        {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    };
    run.dispatcher
        .subscribe(filter, Arc::new(count))
        .unwrap()
        .detach();
    (run, grants)
}

/// Lets time pass second by second until all have ended, each second only once every grant of the
/// one before has become a call. Answers how long it took until the last call.
fn drive(
    run: &Run,
    provider: &Provider,
    grants: &AtomicU64,
    handles: &[JobHandle<String>],
) -> Duration {
    // No time passes before every job has asked.
    let asked = || grants.load(Ordering::SeqCst) as usize + run.dispatcher.admission().queue_len();
    while asked() < handles.len() {
        quiesce(&run.dispatcher);
        thread::yield_now();
    }
    let began = run.clock.now();
    while !handles.iter().all(JobHandle::is_settled) {
        quiesce(&run.dispatcher);
        while provider.calls.load(Ordering::SeqCst) < grants.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        run.clock.advance(Duration::from_secs(1));
    }
    let last = *provider.last.lock().unwrap();
    last.unwrap() - began
}

#[test]
fn two_hundred_jobs_at_the_providers_own_rate_never_see_a_429() {
    let provider = Provider::allowing(60);
    let (run, grants) = run_on(&provider, 60);
    let handles: Vec<_> = (0..200).map(|_| run.ask(Grade::Small)).collect();
    let took = drive(&run, &provider, &grants, &handles);
    JobHandle::join_all(&handles).unwrap();
    assert_eq!(provider.calls.load(Ordering::SeqCst), 200);
    assert_eq!(provider.refused.load(Ordering::SeqCst), 0);
    // Sixty at once and one a second after that.
    let seconds = took.as_secs();
    assert_eq!(seconds, 140);
}

#[test]
fn with_the_rate_set_twice_too_high_the_throttle_finds_it_and_all_finish() {
    let provider = Provider::allowing(60);
    let (run, grants) = run_on(&provider, 120);
    let handles: Vec<_> = (0..200).map(|_| run.ask(Grade::Small)).collect();
    let took = drive(&run, &provider, &grants, &handles);
    JobHandle::join_all(&handles).unwrap();
    let (calls, refused) = (
        provider.calls.load(Ordering::SeqCst),
        provider.refused.load(Ordering::SeqCst),
    );
    assert_eq!(calls - refused, 200);
    // The sixty that came too many at the start, and few after that.
    assert!(
        (60..=100).contains(&refused),
        "{refused} refused in {took:?}"
    );
    let slowest = Duration::from_secs(60 * 60);
    assert!(took < slowest, "{took:?}");
}

// case F6
#[test]
fn callers_at_once_never_take_more_than_the_level_holds() {
    let provider = Provider::allowing(1_000);
    let spec = ModelSpec::new("m", "acme", quota(2_000, 100)).unwrap();
    let (serving, seen) = (Arc::clone(&provider), Arc::clone(&provider));
    let client = ScriptedClient::from_fn(move |_| serving.answer());
    let run = Run::new(|builder| builder.model(spec, Arc::new(client)));
    *seen.clock.lock().unwrap() = Some(run.clock.clone());
    // Each reserves 1 034 tokens of the 2 000.
    let handles: Vec<_> = (0..5).map(|_| run.ask(Grade::Small)).collect();
    for passed in 1..=5 {
        completed(&run, passed);
        quiesce(&run.dispatcher);
        assert_eq!(provider.calls.load(Ordering::SeqCst), passed as u64);
        // 1 034 tokens come back in 31.02 seconds; 966 were left over at the start.
        run.clock.advance(Duration::from_millis(31_020));
    }
    JobHandle::join_all(&handles).unwrap();
}

/// Waits until so many jobs have completed, whichever they are.
fn completed(run: &Run, count: usize) {
    let mut found = 0;
    run.told.wait_until(|event| {
        found += usize::from(event.kind() == EventKind::JobCompleted);
        found == count
    });
}

// case F15
#[test]
fn the_account_is_the_providers_whoever_calls() {
    let provider = Provider::allowing(1_000);
    let (run, _) = run_on(&provider, 10);
    let other = Workflow::new("bob", "asks").unwrap();
    let mut handles: Vec<_> = (0..8).map(|_| run.ask(Grade::Small)).collect();
    handles.extend((0..8).map(|_| run.dispatcher.submit(&other, asks(Grade::Small)).unwrap()));
    completed(&run, 10);
    quiesce(&run.dispatcher);
    assert_eq!(
        provider.calls.load(Ordering::SeqCst),
        10,
        "of both together"
    );
    run.clock.advance(Duration::from_secs(36));
    JobHandle::join_all(&handles).unwrap();
}

// case F7
#[test]
fn a_stream_that_is_dropped_early_stays_debited() {
    let spec = ModelSpec::new("m", "acme", quota(10_000, 100)).unwrap();
    let client = ScriptedClient::from_steps([
        Step::transient().after_delivering("so far"),
        Step::reply("42"),
    ]);
    let run = Run::new(|builder| builder.model(spec, Arc::new(client)));
    let job = nucleo_runtime::job_fn(
        || {
            nucleo_runtime::JobRequirements::none().model(
                crate::support::ANSWER,
                Grade::Small,
                nucleo_runtime::models::Depth::Immediate,
                10,
                nucleo_runtime::models::OutputSize::Verdict,
            )
        },
        |resources, _| {
            let client = resources.model(crate::support::ANSWER)?.client();
            client.stream(&crate::support::question(), |_| {}).map(drop)
        },
    );
    run.submit(job).get().unwrap_err();
    let bucket = run.dispatcher.limiters().bucket_of("m").unwrap();
    let left = bucket.status(run.dispatcher.clock().now());
    assert_eq!((left.tokens, left.requests), (10_000 - 1_034, 99));
}
