//! CPU affinity of threads.

use crate::error::{Error, ErrorKind, Result};

/// Restricts the calling thread to these CPUs.
///
/// Threads that it starts later inherit the affinity. CPUs are numbered from 0, as the operating
/// system numbers them.
///
/// # Errors
/// `InvalidArgument` if the list is empty, or contains a CPU that does not exist or that this
/// process may not use. After an error, the affinity is unchanged. `Unsupported` without the
/// feature `affinity`, and on systems other than Linux.
pub(crate) fn pin_current_thread(cpus: &[usize]) -> Result<()> {
    if cpus.is_empty() {
        let message = "cannot pin a thread to CPUs: `cpus` is empty; list at least one CPU";
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    imp::pin_current_thread(cpus)
}

#[cfg(all(feature = "affinity", target_os = "linux"))]
mod imp {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use crate::error::{Error, ErrorKind, Result};

    pub(super) fn pin_current_thread(cpus: &[usize]) -> Result<()> {
        let mut wanted = CpuSet::new();
        if let Some(cpu) = cpus.iter().find(|&&cpu| cpu >= CpuSet::MAX_CPU) {
            return Err(unusable(&[*cpu]));
        }
        for &cpu in cpus {
            wanted.set(cpu);
        }
        let failed = |error: rustix::io::Errno| {
            Error::from(std::io::Error::from(error)).with_source(std::io::Error::from(error))
        };
        let before = sched_getaffinity(None).map_err(failed)?;
        match sched_setaffinity(None, &wanted) {
            Ok(()) => {}
            // The kernel reports EINVAL if none of the CPUs is usable.
            Err(rustix::io::Errno::INVAL) => return Err(unusable(cpus)),
            Err(error) => return Err(failed(error)),
        }
        // The kernel ignores unusable CPUs without an error.
        let granted = sched_getaffinity(None).map_err(failed)?;
        if granted == wanted {
            return Ok(());
        }
        sched_setaffinity(None, &before).map_err(failed)?;
        let missing: Vec<_> = cpus.iter().copied().filter(|&cpu| !granted.is_set(cpu)).collect();
        Err(unusable(&missing))
    }

    fn unusable(cpus: &[usize]) -> Error {
        let message = format!("cannot pin a thread: this process cannot use the CPUs {cpus:?}");
        Error::new(ErrorKind::InvalidArgument, message)
    }
}

#[cfg(not(all(feature = "affinity", target_os = "linux")))]
mod imp {
    use crate::error::{Error, ErrorKind, Result};

    pub(super) fn pin_current_thread(_: &[usize]) -> Result<()> {
        let message = if cfg!(target_os = "linux") {
            "pinning threads to CPUs requires the feature `affinity` of spdl-core"
        } else {
            "pinning threads to CPUs is supported on Linux only (feature `affinity` of spdl-core)"
        };
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_any_cpu_is_an_error() {
        assert_eq!(pin_current_thread(&[]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[cfg(not(all(feature = "affinity", target_os = "linux")))]
    #[test]
    fn without_the_feature_the_error_names_it() {
        let error = pin_current_thread(&[0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("`affinity`"), "{error}");
    }

    #[cfg(all(feature = "affinity", target_os = "linux"))]
    mod pinned {
        use rustix::thread::{CpuSet, sched_getaffinity};

        use super::*;

        fn usable() -> Vec<usize> {
            let set = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
        }

        #[test]
        fn pinning_a_thread_leaves_other_threads_unpinned() {
            let all = usable();
            for &cpu in &all {
                let at = std::thread::spawn(move || {
                    pin_current_thread(&[cpu, cpu]).unwrap();
                    (usable(), std::thread::spawn(usable).join().unwrap())
                });
                assert_eq!(at.join().unwrap(), (vec![cpu], vec![cpu]));
            }
            assert_eq!(usable(), all);
        }

        #[test]
        fn a_cpu_that_does_not_exist_is_an_error_and_changes_nothing() {
            let all = usable();
            let absent = (0..CpuSet::MAX_CPU).rev().find(|cpu| !all.contains(cpu)).unwrap();
            for cpus in
                [vec![absent], vec![all[0], absent], vec![CpuSet::MAX_CPU], vec![usize::MAX]]
            {
                let error = pin_current_thread(&cpus).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                let named = format!("{:?}", &cpus[cpus.len() - 1..]);
                assert!(error.message().ends_with(&named), "{error} does not name {named}");
                assert_eq!(usable(), all);
            }
        }
    }
}
