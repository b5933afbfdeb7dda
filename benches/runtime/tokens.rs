//! B8 and B9: how much of a budget is used, and how late a waiter for tokens is woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{Demand, RateLimiter, TokenBucket, TokenBudget};
use nucleo_runtime::events::MessageBus;
use nucleo_runtime::testing::{self, AdmissionBench, SteppedLine};
use nucleo_runtime::{Clock, SystemClock};

use crate::Effort;
use crate::report::{Reach, Row};

/// 10 tokens a millisecond.
const BUDGET: TokenBudget = TokenBudget::new(600_000, 600_000);
const MINUTE: Duration = Duration::from_secs(60);

fn empty_bucket(now: Instant) -> Arc<TokenBucket> {
    let bucket = TokenBucket::new("bucket", BUDGET, now).unwrap();
    assert!(
        bucket
            .try_take(&[BUDGET.tokens_per_minute], &[], now)
            .unwrap()
    );
    Arc::new(bucket)
}

fn demand(bucket: &Arc<TokenBucket>, tokens: u32) -> Demand {
    let mut demand = Demand::new();
    demand.add(bucket, tokens);
    demand
}

/// Amounts from 1 to 1 000 in no order.
fn amount(turn: u64) -> u32 {
    1 + ((turn * 7_919) % 1_000) as u32
}

pub(crate) fn used(effort: Effort, report: &mut dyn FnMut(Row)) {
    report(Row::alone(
        "B8.stepped",
        "tokens granted in 60 s of saturated demand, by the budget",
        "",
        used_in_steps(),
        Reach::Within(0.99, 1.0),
    ));
    let window = effort.pick(MINUTE, Duration::from_secs(8));
    report(Row::alone(
        "B8.real",
        format!(
            "the same in {} s of real time, 32 threads",
            window.as_secs()
        ),
        "",
        used_for_real(window),
        Reach::Within(0.99, 1.0),
    ));
}

fn used_in_steps() -> f64 {
    let start = Instant::now();
    let bucket = empty_bucket(start);
    let mut line = SteppedLine::new();
    let mut amounts = vec![0];
    let mut granted = 0;
    let mut now = start;
    while now <= start + MINUTE {
        while line.len() < 50 {
            let tokens = amount(amounts.len() as u64);
            amounts.push(tokens);
            line.arrive(demand(&bucket, tokens), now).unwrap();
        }
        let walked = line.walk(now).unwrap().clone();
        for place in walked.granted {
            granted += u64::from(amounts[place as usize]);
        }
        now = walked.next.expect("somebody waits for tokens").max(now);
    }
    granted as f64 / f64::from(BUDGET.tokens_per_minute)
}

fn used_for_real(window: Duration) -> f64 {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let bus = MessageBus::standalone(Arc::clone(&clock));
    let bench = AdmissionBench::start(Arc::clone(&clock), &bus).unwrap();
    let granted = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let bucket = empty_bucket(start);
    thread::scope(|scope| {
        for asker in 0..32_u64 {
            let (bench, bucket, granted, over) = (&bench, &bucket, &granted, &over);
            let context = testing::context(&clock, &bus, "alice", None).unwrap();
            scope.spawn(move || {
                let mut turn = asker * 1_000;
                while !over.load(Ordering::SeqCst) {
                    turn += 1;
                    let tokens = amount(turn);
                    let Ok(grant) = bench.admission().admit(demand(bucket, tokens), &context)
                    else {
                        return;
                    };
                    if start.elapsed() <= window {
                        granted.fetch_add(u64::from(tokens), Ordering::SeqCst);
                    }
                    drop(grant);
                }
            });
        }
        thread::sleep(window.saturating_sub(start.elapsed()));
        over.store(true, Ordering::SeqCst);
        bench.stop();
    });
    let budget = f64::from(BUDGET.tokens_per_minute) * window.as_secs_f64() / 60.0;
    granted.load(Ordering::SeqCst) as f64 / budget
}

pub(crate) fn lateness(effort: Effort, report: &mut dyn FnMut(Row)) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let bus = MessageBus::standalone(Arc::clone(&clock));
    let bench = AdmissionBench::start(Arc::clone(&clock), &bus).unwrap();
    let context = testing::context(&clock, &bus, "alice", None).unwrap();
    let bucket = empty_bucket(Instant::now());
    let samples = effort.pick(2_000, 400);
    let mut late: Vec<f64> = (0..samples)
        .map(|_| {
            let now = Instant::now();
            // About 5 ms of tokens.
            let due = bucket.earliest_fit(&[50], &[], now).unwrap();
            let grant = bench
                .admission()
                .admit(demand(&bucket, 50), &context)
                .unwrap();
            let late = Instant::now().saturating_duration_since(due);
            drop(grant);
            late.as_secs_f64() * 1e3
        })
        .collect();
    late.sort_by(f64::total_cmp);
    report(Row::alone(
        "B9",
        "lateness of a metered wake-up, p99",
        "ms",
        late[late.len() * 99 / 100],
        Reach::AtMost(1.0),
    ));
}
