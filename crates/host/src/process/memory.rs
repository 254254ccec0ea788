//! Memory that is free but not given back.
#![allow(unsafe_code)]

/// Gives memory that this process no longer uses back to the kernel. The first look at a large cluster builds a large
/// transaction; without this the allocator would keep its room for the life of the process.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes no pointers and locks the allocator itself.
    unsafe {
        libc::malloc_trim(0);
    }
}
