//! Thousands of jobs on real threads, and everything that can happen to them at once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::{Demand, ElasticWindow, RateLimiter, TokenBucket, TokenBudget};
use nucleo_runtime::events::{Event, EventFilter, EventKind, LimiterChange, MessageBus};
use nucleo_runtime::testing::{self, AdmissionBench};
use nucleo_runtime::{
    Clock, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, SystemClock,
    UpstreamFailure, Workflow, job_fn,
};

use super::cases::{Figures, gate};

const ASKING: usize = 16;
const EACH: usize = 250;

/// Who is held where, by what was told. Every hold ends once.
#[derive(Default)]
struct Balance {
    held: Mutex<HashSet<(String, String)>>,
    holds: AtomicUsize,
    faults: Mutex<Vec<String>>,
}

impl Balance {
    fn hear(&self, event: &Event) {
        let Event::Limiter(event) = event else { return };
        let Some(snapshot) = &event.snapshot else {
            return;
        };
        let here = (snapshot.job_id().to_owned(), event.account.to_string());
        let mut held = self.held.lock().unwrap();
        let is_right = match event.change {
            LimiterChange::Held => {
                self.holds.fetch_add(1, Ordering::SeqCst);
                held.insert(here)
            }
            LimiterChange::GrantedFromHold => held.remove(&here),
            LimiterChange::GrantedImmediate => !held.contains(&here),
            // A refusal at the arrival was never held.
            LimiterChange::Rejected => {
                held.remove(&here);
                true
            }
            _ => true,
        };
        if !is_right {
            self.faults.lock().unwrap().push(format!("{event:?}"));
        }
    }

    fn expect_even(&self) {
        assert!(self.holds.load(Ordering::SeqCst) > 0);
        assert_eq!(*self.faults.lock().unwrap(), [""; 0]);
        assert!(self.held.lock().unwrap().is_empty(), "every hold ends");
    }
}

/// The limits that everyone draws on.
struct Limits {
    gates: Vec<Arc<nucleo_runtime::admission::CountingGate>>,
    bucket: Arc<TokenBucket>,
    window: Arc<ElasticWindow>,
}

/// Enough that a minute's budget comes back within milliseconds.
fn budget(thousands: u32) -> TokenBudget {
    TokenBudget::new(thousands * 1_000_000, thousands * 100_000)
}

impl Limits {
    fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            gates: (1..=3).map(|n| gate(&format!("gate-{n}"), n)).collect(),
            bucket: Arc::new(TokenBucket::new("model", budget(60), clock.now()).unwrap()),
            window: Arc::new(
                ElasticWindow::builder("search", 50, Duration::from_millis(1))
                    .max_throttle_tenths(20)
                    .failures_to_block(2)
                    .initial_cooldown(Duration::from_millis(2))
                    .max_cooldown(Duration::from_millis(4))
                    .build()
                    .unwrap(),
            ),
        }
    }

    fn demand(&self, figures: &mut Figures) -> Demand {
        let mut demand = Demand::new();
        for gate in &self.gates {
            if figures.next(2) == 0 {
                demand.add(gate, ());
            }
        }
        if figures.next(3) == 0 {
            demand.add(&self.bucket, figures.next(40_000) as u32);
        }
        if figures.next(6) == 0 {
            demand.add(&self.window, ());
        }
        demand
    }

    /// One thing that befalls the limits.
    fn shake(&self, figures: &mut Figures, clock: &Arc<dyn Clock>) {
        let now = clock.now();
        match figures.next(6) {
            0 => self.bucket.record_backpressure(1, now),
            1 | 2 => self.bucket.record_success(now),
            3 => self
                .bucket
                .set_config(budget(40 + figures.next(40) as u32), now),
            4 => {
                let failure = UpstreamFailure::with_status(503, "search", "busy");
                self.window.on_rate_limit_error(&failure, now);
            }
            _ => self.window.on_success(now),
        }
    }

    fn expect_whole(&self) {
        for gate in &self.gates {
            assert_eq!(gate.in_use(), 0, "at rest '{}' is whole", gate.name());
        }
    }
}

/// What one job got.
enum Got {
    Granted,
    Cancelled,
    Refused,
}

fn ask(bench: &AdmissionBench, demand: Demand, context: &JobContext, figures: &mut Figures) -> Got {
    match bench.admission().admit(demand, context) {
        Ok(grant) => {
            match figures.next(4) {
                0 => grant.rollback(),
                1 => grant.release(),
                _ => drop(grant),
            }
            Got::Granted
        }
        Err(error) if error.is_cancelled() => Got::Cancelled,
        // The window refuses everyone while its circuit is open.
        Err(error) => {
            assert!(error.to_string().contains("search"), "{error}");
            Got::Refused
        }
    }
}

#[test]
fn thousands_of_demands_under_everything_at_once_leave_the_line_at_rest() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let bus = MessageBus::standalone(Arc::clone(&clock));
    bus.start();
    let balance = Arc::new(Balance::default());
    let heard = Arc::clone(&balance);
    let _subscription = bus
        .subscribe(
            EventFilter::all().kind(EventKind::Limiter),
            Arc::new(move |event: &Arc<Event>| heard.hear(event)),
        )
        .unwrap();
    let bench = AdmissionBench::start(Arc::clone(&clock), &bus).unwrap();
    let limits = Limits::new(&clock);
    let running: Vec<Mutex<Option<JobContext>>> = (0..ASKING).map(|_| Mutex::default()).collect();
    let done = AtomicBool::new(false);
    let counts = [const { AtomicUsize::new(0) }; 3];
    thread::scope(|scope| {
        let askers: Vec<_> = (0..ASKING)
            .map(|number| {
                let (clock, bus, bench, limits) = (&clock, &bus, &bench, &limits);
                let (running, counts) = (&running, &counts);
                scope.spawn(move || {
                    let mut figures = Figures::new(number as u64);
                    for _ in 0..EACH {
                        let context = testing::context(clock, bus, "user", None).unwrap();
                        *running[number].lock().unwrap() = Some(context.clone());
                        let demand = limits.demand(&mut figures);
                        let got = ask(bench, demand, &context, &mut figures);
                        counts[got as usize].fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let (running, done, limits, clock) = (&running, &done, &limits, &clock);
        scope.spawn(move || {
            let mut figures = Figures::new(99);
            while !done.load(Ordering::SeqCst) {
                limits.shake(&mut figures, clock);
                if figures.next(32) == 0 {
                    let number = figures.next(ASKING as u64) as usize;
                    let context = running[number].lock().unwrap().clone();
                    if let Some(context) = context {
                        testing::cancel(&context, "not needed");
                    }
                }
                thread::yield_now();
            }
        });
        for asker in askers {
            asker.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    let [granted, cancelled, refused] = counts.map(AtomicUsize::into_inner);
    assert_eq!(granted + cancelled + refused, ASKING * EACH);
    assert!(granted > ASKING * EACH / 10, "{granted} granted");
    bench.quiesce();
    assert_eq!(bench.admission().queue_len(), 0);
    limits.expect_whole();
    bench.stop();
    bus.stop().unwrap();
    balance.expect_even();
}

#[test]
fn thousands_of_jobs_that_end_in_every_way_and_a_stop_leave_every_limit_whole() {
    const JOBS: usize = 2_000;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let dispatcher = JobDispatcher::builder().max_threads(64).build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "load").unwrap();
    let limits = Limits::new(&clock);
    let mut figures = Figures::new(7);
    let mut handles: Vec<JobHandle<()>> = Vec::new();
    let done = AtomicUsize::new(0);
    for number in 0..JOBS {
        let (gates, bucket) = (limits.gates.clone(), Arc::clone(&limits.bucket));
        let (wanted, tokens) = (figures.next(8), figures.next(40_000) as u32);
        let fails = figures.next(10) == 0;
        let job = job_fn(
            move || {
                let mut needs = JobRequirements::none();
                for (index, gate) in gates.iter().enumerate() {
                    if wanted >> index & 1 == 1 {
                        needs = needs.permit(gate);
                    }
                }
                needs.limiter(&bucket, tokens)
            },
            move |_, _| match fails {
                true => Err(JobError::uncorrectable("as it was told")),
                false => Ok(()),
            },
        )
        // Some are over before they are granted.
        .timeout(Some(Duration::from_millis(1 + figures.next(2_000))));
        match dispatcher.submit(&workflow, job) {
            Ok(handle) => handles.push(handle),
            // So many are in at a time; the next is tried once these are out.
            Err(error) => panic!("job {number}: {error}"),
        }
        limits.shake(&mut figures, &clock);
        if figures.next(5) == 0 {
            let which = figures.next(handles.len() as u64) as usize;
            handles[which].cancel("not needed");
        }
        if number == JOBS * 3 / 4 {
            // Those before end as they may; the rest meets the stop.
            for handle in &handles[..number / 2] {
                done.fetch_add(usize::from(handle.get().is_ok()), Ordering::SeqCst);
            }
        }
    }
    dispatcher.shutdown(Duration::from_secs(10)).unwrap();
    for handle in &handles {
        assert!(handle.is_settled());
        if let Err(error) = handle.get() {
            let expected = error.is_cancelled()
                || error.is_timed_out()
                || error.to_string().contains("as it was told");
            assert!(expected, "{error}");
        }
    }
    assert!(done.load(Ordering::SeqCst) > 100, "{done:?} done");
    assert_eq!(dispatcher.job_count(), 0);
    limits.expect_whole();
    // Every handle has its answer before the last thread has returned.
    while dispatcher.threads().live > 0 {
        thread::yield_now();
    }
}
