//! Linear memories that the next instance takes over.
//!
//! A new instance for each batch is what keeps one batch from another. Most of what it costs are its pages: the kernel finds,
//! clears and takes back each one, and tells the other CPUs. So what an instance leaves behind is cleared here and kept: the
//! next one finds zeros, as in new memory, and pages that are there already.
//!
//! Which pages were touched stands in `/proc/self/pagemap` (Linux's `Documentation/admin-guide/mm/pagemap.rst`: bit 63 of an
//! entry, present; bit 62, swapped). `PAGEMAP_SCAN`, as wasmtime's own pool uses it, would not tell of pages in swap that they
//! are not zero any more. Where pagemap cannot be read, nothing is kept.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::param::page_size;
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

use crate::limits::{
    PLUGIN_KEPT_BYTES_MAX, PLUGIN_KEPT_MEMORIES_MAX, PLUGIN_KEPT_MEMORY_BYTES_MAX,
    PLUGIN_KEPT_TOUCHED_BYTES_MAX,
};

/// A page that is in RAM, or in swap.
const TOUCHED: u64 = 0b11 << 62;
const ENTRY_BYTES: usize = size_of::<u64>();

/// Memories that are in no instance, all of them zero. Handles share them.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptMemories(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The last one in is the first one out: its pages are likeliest to be in the CPU's caches.
    free: Mutex<Vec<Mapping>>,
    /// `None`: it cannot be opened here.
    pagemap: OnceLock<Option<File>>,
    /// No more are of use than guests run at once.
    memories_max: usize,
}

impl Default for Shared {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            free: Mutex::default(),
            pagemap: OnceLock::new(),
            memories_max: cpus.min(PLUGIN_KEPT_MEMORIES_MAX),
        }
    }
}

impl KeptMemories {
    /// Gives all of them back to the system.
    pub(super) fn clear(&self) {
        let free = std::mem::take(&mut *self.free());
        drop(free);
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Mapping>> {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, layout: Layout) -> Option<Mapping> {
        let mut free = self.free();
        let place = free.iter().rposition(|mapping| mapping.layout == layout)?;
        Some(free.remove(place))
    }

    /// Keeps a memory that an instance has left, unless it is too large, or too many are here.
    fn keep(&self, mut mapping: Mapping) {
        let pagemap = self.0.pagemap.get_or_init(|| File::open("/proc/self/pagemap").ok());
        let cleared = pagemap.as_ref().is_some_and(|pagemap| mapping.clear(pagemap).is_ok());
        let mut free = self.free();
        let bytes = free.iter().map(|kept| kept.touched).sum::<usize>() + mapping.touched;
        if cleared && free.len() < self.0.memories_max && bytes <= PLUGIN_KEPT_BYTES_MAX {
            free.push(mapping);
        }
    }
}

// SAFETY: a memory is page aligned, zero, and followed by as many bytes that fault as asked for; it belongs to its instance until
// that drops it.
#[expect(unsafe_code, reason = "the trait is unsafe")]
unsafe impl MemoryCreator for KeptMemories {
    fn new_memory(
        &self,
        _ty: MemoryType,
        minimum: usize,
        _maximum: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let capacity = reserved.unwrap_or_default().max(minimum);
        let layout = Layout { capacity, guard };
        let mapping = self.take(layout).map_or_else(|| Mapping::new(layout), Ok);
        let mut mapping = mapping.map_err(|error| error.to_string())?;
        mapping.resize(minimum).map_err(|error| error.to_string())?;
        Ok(Box::new(Memory { mapping: Some(mapping), kept: self.clone() }))
    }
}

/// The memory of an instance.
struct Memory {
    /// `None` once it was dropped.
    mapping: Option<Mapping>,
    kept: KeptMemories,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            self.kept.keep(mapping);
        }
    }
}

// SAFETY: its base never moves, and what lies behind its size faults.
#[expect(unsafe_code, reason = "the trait is unsafe")]
unsafe impl LinearMemory for Memory {
    fn byte_size(&self) -> usize {
        self.mapping.as_ref().map_or(0, |mapping| mapping.size)
    }

    fn byte_capacity(&self) -> usize {
        self.mapping.as_ref().map_or(0, |mapping| mapping.layout.capacity)
    }

    fn grow_to(&mut self, size: usize) -> wasmtime::Result<()> {
        let Some(mapping) = &mut self.mapping else { return Ok(()) };
        mapping.resize(size).map_err(wasmtime::Error::new)
    }

    fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(ptr::null_mut(), |mapping| mapping.base().cast())
    }
}

/// Bytes of address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// What the memory may grow to.
    capacity: usize,
    /// What faults before and after it.
    guard: usize,
}

/// Address space of which the first bytes can be used.
#[derive(Debug)]
struct Mapping {
    start: *mut c_void,
    layout: Layout,
    /// Bytes that can be used.
    size: usize,
    /// The most that these ever were. What lies between is zero, and may have pages.
    reached: usize,
    /// Bytes of pages that are there although nobody uses them.
    touched: usize,
}

// SAFETY: it owns its address space, which is the same for all threads.
#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing is written through a shared reference.
#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(layout: Layout) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        #[expect(unsafe_code, reason = "for new address space")]
        // SAFETY: the kernel chooses an address where nothing is.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), layout.bytes()?, ProtFlags::empty(), flags)? };
        Ok(Self { start, layout, size: 0, reached: 0, touched: 0 })
    }

    fn base(&self) -> *mut c_void {
        self.start.wrapping_byte_add(self.layout.guard)
    }

    /// Sets how many bytes can be used. What is added is zero, and so must be what is taken away.
    fn resize(&mut self, size: usize) -> io::Result<()> {
        if size > self.layout.capacity {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let (part, protection) = if size < self.size {
            (size..self.size, MprotectFlags::empty())
        } else {
            (self.size..size, MprotectFlags::READ | MprotectFlags::WRITE)
        };
        if !part.is_empty() {
            let start = self.base().wrapping_byte_add(part.start);
            #[expect(unsafe_code, reason = "for the protection of pages")]
            // SAFETY: the part lies within the capacity, which is ours.
            unsafe {
                mprotect(start, part.len(), protection)?;
            }
        }
        self.size = size;
        self.reached = self.reached.max(size);
        Ok(())
    }

    /// Makes it zero.
    ///
    /// # Errors
    /// When that would take longer than new memory, or it cannot be told which pages were touched. Not all of it is zero then.
    fn clear(&mut self, pagemap: &File) -> io::Result<()> {
        if self.reached > PLUGIN_KEPT_MEMORY_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let page = page_size();
        let mut entries = vec![0; self.reached / page * ENTRY_BYTES];
        let first = self.base().addr() / page * ENTRY_BYTES;
        pagemap.read_exact_at(&mut entries, first as u64)?;
        let touched = runs(&entries);
        self.touched = touched.iter().map(|run| run.len() * page).sum();
        if self.touched > PLUGIN_KEPT_TOUCHED_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        for run in touched {
            let used = run.start * page..self.size.min(run.end * page);
            let start = self.base().wrapping_byte_add(used.start).cast::<u8>();
            #[expect(unsafe_code, reason = "for memory that has no reference")]
            // SAFETY: the pages lie within the size, which can be written, and the instance is gone.
            unsafe {
                start.write_bytes(0, used.len());
            }
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Ok(bytes) = self.layout.bytes() else { return };
        #[expect(unsafe_code, reason = "for the end of address space")]
        // SAFETY: it is ours, and nobody has a reference into it.
        let unmapped = unsafe { munmap(self.start, bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

impl Layout {
    fn bytes(self) -> io::Result<usize> {
        let guards = self.guard.checked_mul(2);
        guards
            .and_then(|guards| guards.checked_add(self.capacity))
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }
}

/// Pages that follow each other, by entries of pagemap.
fn runs(entries: &[u8]) -> Vec<Range<usize>> {
    let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (page, entry) in entries.iter().enumerate() {
        if u64::from_ne_bytes(*entry) & TOUCHED == 0 {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64 << 10;
    const RESERVED: usize = 4 << 30;
    const GUARD: usize = 32 << 20;

    fn new(kept: &KeptMemories, minimum: usize) -> Box<dyn LinearMemory> {
        let ty = MemoryType::new(1, None);
        kept.new_memory(ty, minimum, None, Some(RESERVED), GUARD).unwrap()
    }

    #[expect(unsafe_code, reason = "the memory of a guest")]
    fn bytes(memory: &mut dyn LinearMemory) -> &mut [u8] {
        // SAFETY: so many bytes can be used, and the reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), memory.byte_size()) }
    }

    #[test]
    fn what_an_instance_leaves_is_taken_over_and_is_zero() {
        let kept = KeptMemories::default();
        let mut first = new(&kept, 17 * PAGE);
        bytes(&mut *first)[5000..200_000].fill(1);
        first.grow_to(20 * PAGE).unwrap();
        bytes(&mut *first)[19 * PAGE..].fill(2);
        let base = first.as_ptr().addr();
        drop(first);
        let page = page_size();
        let written = 200_000_usize.next_multiple_of(page) - 5000 / page * page;
        assert_eq!(kept.free()[0].touched, written + PAGE);

        for size in [17, 18, 20, 30] {
            let mut next = new(&kept, 17 * PAGE);
            assert_eq!(next.as_ptr().addr(), base);
            assert_eq!(next.byte_size(), 17 * PAGE, "not what the one before has grown to");
            next.grow_to(size * PAGE).unwrap();
            assert!(bytes(&mut *next).iter().all(|byte| *byte == 0), "{size}");
            bytes(&mut *next).fill(u8::try_from(size).unwrap());
        }
    }

    #[test]
    fn two_instances_have_two_memories() {
        let kept = KeptMemories::default();
        drop(new(&kept, PAGE));
        let (mut one, mut two) = (new(&kept, PAGE), new(&kept, PAGE));
        bytes(&mut *one).fill(1);
        assert!(bytes(&mut *two).iter().all(|byte| *byte == 0));
        assert_eq!(one.byte_capacity(), RESERVED);
        assert!(one.grow_to(RESERVED + PAGE).is_err());
    }

    #[test]
    fn no_more_is_kept_than_the_limits_say_and_nothing_when_asked() {
        let kept = KeptMemories(Arc::new(Shared { memories_max: 4, ..Shared::default() }));
        let mut large = new(&kept, PLUGIN_KEPT_TOUCHED_BYTES_MAX + PAGE);
        bytes(&mut *large).fill(1);
        drop(large);
        drop(new(&kept, PLUGIN_KEPT_MEMORY_BYTES_MAX + PAGE));
        assert!(kept.free().is_empty(), "too much of it was touched, or it is too large");

        let few: Vec<_> = (0..6).map(|_| new(&kept, PAGE)).collect();
        drop(few);
        assert_eq!(kept.free().len(), 4);
        kept.clear();
        assert!(kept.free().is_empty());

        let mut each: Vec<_> = (0..3).map(|_| new(&kept, PLUGIN_KEPT_TOUCHED_BYTES_MAX)).collect();
        each.iter_mut().for_each(|memory| bytes(&mut **memory).fill(1));
        drop(each);
        assert_eq!(kept.free().len(), PLUGIN_KEPT_BYTES_MAX / PLUGIN_KEPT_TOUCHED_BYTES_MAX);
    }

    /// A page that was written and is in swap is not zero, and does not look present.
    #[test]
    fn a_page_in_swap_counts_as_touched() {
        let (present, swapped, file) = (1_u64 << 63, 1_u64 << 62, 1_u64 << 61);
        let entries = [0, present, swapped, present | file, 0, file, swapped];
        let entries: Vec<u8> = entries.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
        assert_eq!(runs(&entries), [1..4, 6..7]);
    }

    #[test]
    fn without_pagemap_nothing_is_kept() {
        let kept = KeptMemories::default();
        kept.0.pagemap.set(None).unwrap();
        drop(new(&kept, PAGE));
        assert!(kept.free().is_empty());
    }
}
