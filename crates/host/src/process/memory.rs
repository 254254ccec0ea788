//! Memory that is not needed any more, given back to the kernel.
#![allow(unsafe_code)]

/// From this size on a buffer is a mapping of its own.
#[cfg(target_env = "gnu")]
const LARGE_BUFFER: libc::c_int = 128 << 10;

/// Makes the allocator give every large buffer back as soon as it is freed, and grow it without copying. By default it
/// takes the first that is freed as a sign to keep the next ones.
pub fn return_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes no pointers and locks the allocator itself.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BUFFER);
    }
}

/// Gives memory that this process no longer uses back to the kernel. The first look at a large cluster builds a large
/// transaction; without this the allocator would keep its room for the life of the process.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes no pointers and locks the allocator itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets go of the pages of the program and its libraries: most were needed for the start only, and they are most of
/// an idle process. Those in use come back from the page cache as they are touched.
pub fn release_program_pages() {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    for (start, length) in unchanged_mappings(&smaps) {
        // SAFETY: the mapping is private, cannot be written and has no page of its own, not even in swap, so that each
        // page is the file's and is read again with the same content. Nobody unmaps libraries here.
        unsafe {
            libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED);
        }
    }
}

/// Where files are mapped, not to be written, and every page is still as it is in the file: start and length.
fn unchanged_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
            ("Anonymous:" | "Swap:", size) if size != "0" => candidate = None,
            ("VmFlags:", _) => found.extend(candidate.take()),
            (range, permissions) if !range.ends_with(':') => {
                let is_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
                let number = |text| usize::from_str_radix(text, 16).ok();
                candidate = range
                    .split_once('-')
                    .and_then(|(start, end)| Some((number(start)?, number(end)?)))
                    .filter(|_| is_file && matches!(permissions, "r-xp" | "r--p"))
                    .and_then(|(start, end)| Some((start, end.checked_sub(start)?)));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_that_are_as_their_file_are_let_go_of() {
        let mapping = |head: &str, anonymous: u32, swap: u32| {
            format!("{head}\nSize: 8 kB\nAnonymous: {anonymous} kB\nSwap: {swap} kB\nVmFlags: rd mr\n")
        };
        let smaps = [
            mapping("1000-3000 r--p 00000000 fe:00 17 /usr/bin/ferry", 0, 0),
            mapping("3000-4000 r-xp 00002000 fe:00 17 /usr/bin/ferry", 0, 0),
            // relocated, then made read-only; the second is swapped out
            mapping("4000-5000 r--p 00003000 fe:00 17 /usr/bin/ferry", 4, 0),
            mapping("5000-6000 r--p 00004000 fe:00 17 /usr/bin/ferry", 0, 4),
            mapping("6000-7000 rw-p 00005000 fe:00 17 /usr/bin/ferry", 0, 0),
            mapping("7000-8000 r--s 00000000 fe:00 17 /etc/shared", 0, 0),
            mapping("8000-9000 rw-p 00000000 00:00 0 [heap]", 0, 0),
            mapping("9000-a000 r-xp 00000000 00:00 0 [vdso]", 0, 0),
            mapping("a000-b000 r--p 00000000 00:00 0", 0, 0),
            mapping("b000-d000 r-xp 00000000 fe:00 18 /lib/libc.so.6", 0, 0),
        ];
        assert_eq!(
            unchanged_mappings(&smaps.concat()),
            [(0x1000, 0x2000), (0x3000, 0x1000), (0xb000, 0x2000)]
        );
        assert_eq!(
            unchanged_mappings("nonsense\nVmFlags: x\n-\n1-0 r-xp 0 0 0 /x\nVmFlags:\n"),
            []
        );
    }

    #[test]
    fn the_program_goes_on_without_its_pages() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("RssFile:"))
                .unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let before = resident();
        release_program_pages();
        let after = resident();
        assert!(after < before / 2, "{before} kB, then {after} kB");
        release_free_memory();
    }
}
