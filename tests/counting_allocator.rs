//! The counting allocator, installed. In a binary of its own: a process has one allocator.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use nucleo_runtime::admission::MemorySource;
use nucleo_runtime::admission::memory_source::{AllocatedMemory, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// What one thread may be off by.
const DRIFT: u64 = 64 * 1024;
const MIB: u64 = 1 << 20;

/// One test at a time: they read what the whole process has out.
static ALONE: Mutex<()> = Mutex::new(());

fn used() -> u64 {
    AllocatedMemory::within(1 << 40)
        .unwrap()
        .read()
        .unwrap()
        .used
}

fn about(figure: u64, expected: u64, threads: u64) -> bool {
    figure.abs_diff(expected) <= (threads + 2) * DRIFT
}

#[test]
fn what_is_out_is_counted_and_what_comes_back_too() {
    let _alone = ALONE.lock().unwrap();
    let before = used();
    let mut block = Vec::<u8>::with_capacity(8 * MIB as usize);
    assert!(about(used(), before + 8 * MIB, 1));
    block.push(1);
    block.reserve_exact(24 * MIB as usize);
    assert!(
        about(used(), before + 24 * MIB, 1),
        "grown in place or moved"
    );
    block.shrink_to_fit();
    assert!(about(used(), before, 1));
    let zeroed = vec![0_u8; 4 * MIB as usize];
    assert!(about(used(), before + 4 * MIB, 1));
    drop((block, zeroed));
    assert!(about(used(), before, 1));
}

#[test]
fn many_small_blocks_are_off_by_no_more_than_the_drift_of_each_thread() {
    let _alone = ALONE.lock().unwrap();
    let before = used();
    let (filled, counted) = (Arc::new(Barrier::new(5)), Arc::new(Barrier::new(5)));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (filled, counted) = (Arc::clone(&filled), Arc::clone(&counted));
            thread::spawn(move || {
                let blocks: Vec<_> = (0..10_000).map(|_| Box::new([1_u8; 100])).collect();
                filled.wait();
                counted.wait();
                drop(blocks);
            })
        })
        .collect();
    filled.wait();
    let pointers = 10_000 * size_of::<usize>() as u64;
    assert!(about(used(), before + 4 * (1_000_000 + pointers), 4));
    counted.wait();
    threads.into_iter().for_each(|it| it.join().unwrap());
    assert!(about(used(), before, 4));
}

#[test]
fn what_threads_take_and_others_free_does_not_add_up_to_an_error() {
    let _alone = ALONE.lock().unwrap();
    let before = used();
    // Each takes less than its drift and ends; what it took is freed here.
    for _ in 0..2_000 {
        let block = thread::spawn(|| vec![1_u8; 10_000]).join().unwrap();
        drop(block);
    }
    // Lost drifts would be 20 MB by now.
    assert!(about(used(), before, 8), "{} then {}", before, used());
}
