//! Queueing formulas: mean-value analysis, and the rate of a stage that restores the input order.

/// A service station of a closed queueing network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Station {
    /// Service time of one customer, in seconds.
    pub(super) demand: f64,
    /// Number of servers, at least 1; not always an integer, because CPUs may be shared.
    pub(super) servers: f64,
}

impl Station {
    /// The highest possible throughput, in customers per second.
    pub(super) fn capacity(&self) -> f64 {
        if self.demand > 0.0 { self.servers / self.demand } else { f64::INFINITY }
    }
}

/// Throughput of a closed network with `population` customers, in customers per second.
///
/// Exact mean-value analysis: M. Reiser, S. S. Lavenberg, "Mean-Value Analysis of Closed Multichain
/// Queuing Networks", Journal of the ACM 27 (1980). A station with c servers is replaced by one
/// server that is c times as fast, and a delay of `demand * (c - 1) / c`: A. Seidmann, P. J.
/// Schweitzer, S. Shalev-Oren, "Computerized Closed Queueing Network Models of Flexible
/// Manufacturing Systems", Large Scale Systems 12 (1987).
///
/// Between two integers, the result is interpolated. The analysis stops after
/// [`MAX_POPULATION`] customers, or if the throughput is nearly that of the slowest station.
pub(super) fn throughput(stations: &[Station], population: f64) -> f64 {
    let population = population.clamp(1.0, MAX_POPULATION);
    let servers = |station: &Station| station.servers.max(1.0);
    let delay: f64 = stations.iter().map(|it| it.demand * (servers(it) - 1.0) / servers(it)).sum();
    let bound = stations.iter().map(Station::capacity).fold(f64::INFINITY, f64::min);
    let mut queued = vec![0.0; stations.len()];
    let (mut before, mut now) = (0.0, 0.0);
    for customers in 1..=population.ceil() as usize {
        let resident =
            |at: usize| stations[at].demand / servers(&stations[at]) * (1.0 + queued[at]);
        let residences: Vec<f64> = (0..stations.len()).map(resident).collect();
        let cycle: f64 = delay + residences.iter().sum::<f64>();
        if cycle <= 0.0 {
            return f64::INFINITY;
        }
        (before, now) = (now, customers as f64 / cycle);
        for (queue, residence) in queued.iter_mut().zip(residences) {
            *queue = now * residence;
        }
        if now >= bound * SATURATED {
            return now;
        }
    }
    let part = 1.0 - (population.ceil() - population);
    before + (now - before) * part
}

/// Above this population, the throughput differs from that of the slowest station by less than the
/// error of any measurement.
const MAX_POPULATION: f64 = 1024.0;
/// The analysis stops at this share of the throughput of the slowest station.
const SATURATED: f64 = 0.999;

/// Throughput of `servers` servers that emit results in input order, with at most `places` items
/// that are in service or wait for an earlier item, relative to the throughput in order of
/// completion; in 0..=1.
///
/// `times` are service times that represent the distribution. An item starts when a server is free
/// and the item `places` before it has left. The recursion is that of a G/G/c queue with a
/// resequencing buffer: F. Baccelli, A. M. Makowski, "Queueing Models for Systems with
/// Synchronization Constraints", Proceedings of the IEEE 77 (1989).
pub(super) fn share_in_order(times: &[f64], servers: usize, places: usize) -> f64 {
    let (servers, places) = (servers.max(1), places.max(1));
    let total: f64 = times.iter().sum();
    if total <= 0.0 {
        return 1.0;
    }
    let mut free = std::collections::BinaryHeap::new();
    free.extend(std::iter::repeat_n(std::cmp::Reverse(Moment(0.0)), servers.min(places)));
    let mut left: std::collections::VecDeque<f64> = std::iter::repeat_n(0.0, places).collect();
    let mut last_left = 0.0_f64;
    for time in times {
        let server = free.pop().map_or(0.0, |std::cmp::Reverse(Moment(at))| at);
        let place = left.pop_front().unwrap_or(0.0);
        let completed = server.max(place) + time;
        free.push(std::cmp::Reverse(Moment(completed)));
        last_left = last_left.max(completed);
        left.push_back(last_left);
    }
    (total / servers as f64 / last_left).min(1.0)
}

/// A time that is ordered; never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(demand: f64, servers: f64) -> Station {
        Station { demand, servers }
    }

    fn is_about(value: f64, expected: f64, tolerance: f64) {
        assert!((value / expected - 1.0).abs() <= tolerance, "{value} for {expected}");
    }

    /// The machine-repair model M/M/1//N: N machines that run for `think` on average, and one
    /// repairman. The probability of k broken machines is p(0) * N! / (N - k)! * (s / z)^k.
    fn machine_repair(think: f64, service: f64, machines: usize) -> f64 {
        let mut weights = vec![1.0];
        for broken in 0..machines {
            let before = weights[broken];
            weights.push(before * (machines - broken) as f64 * service / think);
        }
        let all: f64 = weights.iter().sum();
        (1.0 - weights[0] / all) / service
    }

    #[test]
    fn machine_repair_is_exact() {
        for (think, machines) in [(1.0, 1), (4.0, 3), (9.0, 8), (9.0, 30), (20.0, 5)] {
            // As many servers as machines: a delay. Seidmann's approximation leaves a queue of
            // demand / servers, so the delay is divided among very many servers.
            let stations = [station(think, 1e9), station(0.5, 1.0)];
            let exact = machine_repair(think, 0.5, machines);
            is_about(throughput(&stations, machines as f64), exact, 1e-6);
        }
    }

    #[test]
    fn balanced_single_servers_have_the_known_throughput() {
        // N customers, M equal stations: N / (N + M - 1) / demand.
        let stations = vec![station(0.25, 1.0); 4];
        for customers in [1, 2, 5, 40] {
            let exact = 4.0 * f64::from(customers) / f64::from(customers + 3);
            is_about(throughput(&stations, f64::from(customers)), exact, 1e-9);
        }
        let between = throughput(&stations, 1.5);
        assert!(between > throughput(&stations, 1.0) && between < throughput(&stations, 2.0));
    }

    #[test]
    fn several_servers_keep_the_asymptotic_bounds() {
        // One customer sees no queue, many customers saturate the slowest station.
        let stations = [station(1.0, 4.0), station(0.1, 1.0)];
        is_about(throughput(&stations, 1.0), 1.0 / 1.1, 1e-9);
        is_about(throughput(&stations, 500.0), 4.0, 0.01);
        for customers in 1..40 {
            let bound = (f64::from(customers) / 1.1).min(4.0);
            assert!(throughput(&stations, f64::from(customers)) <= bound * (1.0 + 1e-9));
        }
        assert_eq!(throughput(&[], 3.0), f64::INFINITY);
        assert_eq!(station(0.0, 1.0).capacity(), f64::INFINITY);
    }

    #[test]
    fn equal_times_lose_nothing_in_order() {
        let share = share_in_order(&[0.01; 1000], 8, 8);
        is_about(share, 1.0, 0.01);
        // Four places for eight servers.
        is_about(share_in_order(&[0.01; 1000], 8, 4), 0.5, 0.01);
        is_about(share_in_order(&[0.01; 1000], 8, 1), 0.125, 1e-9);
        assert_eq!(share_in_order(&[], 8, 8), 1.0);
    }

    #[test]
    fn a_straggler_stalls_a_stage_in_order_once_the_places_are_used() {
        // One of 100 items takes 1 s, the others 10 ms: 2 s of work per 100 items, 0.5 s on four
        // servers.
        let times: Vec<f64> = (0..2000).map(|n| if n % 100 == 50 { 1.0 } else { 0.01 }).collect();
        // With few places, the other servers stop during the straggler.
        let few = share_in_order(&times, 4, 8);
        is_about(few, 0.4, 0.1);
        // With many places, they continue.
        let many = share_in_order(&times, 4, 1000);
        assert!(many > 0.9, "{many}");
    }
}
