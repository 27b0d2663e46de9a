package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Return is a scenario: one site is cut off, some keys change at each side, and the site comes back. That once for each
// number of keys, and for each number of times that each of them changes. What coming back costs is printed, and bounded.
type Return struct {
	keys, times string
	most        int // writes of a round at one side; longer rounds are left out
	value       int // bytes
	bytes       float64
	back, put   time.Duration

	lab     *Lab
	healthy []*Replica
	away    *Replica
	round   int
}

// Of so many keys one is changed at both sides.
const sharedEvery = 100

func newReturn(flags *flag.FlagSet) *Return {
	r := &Return{}
	flags.StringVar(&r.keys, "return-keys", "100,1000,10000", "return: how many keys change at each side")
	flags.StringVar(&r.times, "return-times", "1,100", "return: how often each of them changes")
	flags.IntVar(&r.most, "return-writes", 200000, "return: the most writes of a round at one side; what takes more is left out")
	flags.IntVar(&r.value, "return-value", 2048, "return: bytes of a value")
	flags.Float64Var(&r.bytes, "return-bytes", 1.3, "return: the most bytes of a link for each byte that changed")
	flags.DurationVar(&r.back, "return-back", 5*time.Second, "return: the longest that coming back may take")
	flags.DurationVar(&r.put, "return-put", 50*time.Millisecond, "return: the longest p99 of a site's own puts meanwhile")
	return r
}

func numbers(list string) (all []int, err error) {
	for _, word := range strings.Split(list, ",") {
		number, err := strconv.Atoi(word)
		if err != nil || number <= 0 {
			return nil, fmt.Errorf("%q is no number of keys or times", word)
		}
		all = append(all, number)
	}
	return all, nil
}

// play is the whole scenario.
func (r *Return) play(l *Lab, size int) error {
	keys, err := numbers(r.keys)
	if err != nil {
		return err
	}
	times, err := numbers(r.times)
	if err != nil {
		return err
	}
	l.flags = []string{"--auto-compaction-mode=periodic", "--auto-compaction-retention=10s", "--quota-backend-bytes=8589934592"}
	if err := l.begin(max(size, 2)); err != nil {
		return err
	}
	r.lab, r.away, r.healthy = l, l.replicas[len(l.replicas)-1], l.replicas[:len(l.replicas)-1]
	if took, err := l.converged(); !l.report.check(err == nil, "the replicas meet", fmt.Sprint(took, why(err))) {
		return nil
	}
	for _, keys := range keys {
		for _, times := range times {
			if keys*times > r.most {
				l.report.note("%d keys changed %d times: left out, %d writes at each side", keys, times, keys*times)
				continue
			}
			if stopped() {
				return nil
			}
			if err := r.play1(keys, times); err != nil {
				return fmt.Errorf("%d keys changed %d times: %w", keys, times, err)
			}
		}
	}
	return nil
}

// key is the nth key that a side changes in this round. The first ones are the same at both sides.
func (r *Return) key(side string, n, keys int) string {
	if n < keys/sharedEvery {
		side = "both"
	}
	return fmt.Sprintf("round%d/%s/%06d", r.round, side, n)
}

// change writes the keys of a side so many times, with values that no compressor can do anything with; other ones before the cut.
func (r *Return) change(at *Replica, side string, keys, times int, when string) error {
	month := &Month{lab: r.lab}
	return r.lab.drive(at, keys*times, func(ctx context.Context, etcd *clientv3.Client, n int) error {
		key := r.key(side, n%keys, keys)
		_, err := etcd.Put(ctx, key, month.text(at.name+when+fmt.Sprint(r.round), key, n, r.value))
		return err
	})
}

// play1 is one absence and what comes of it.
func (r *Return) play1(keys, times int) error {
	l := r.lab
	r.round++
	home := r.healthy[0]
	for _, side := range []string{"home", "away"} {
		if err := r.change(home, side, keys, 1, "before"); err != nil {
			return err
		}
	}
	if _, err := l.converged(); err != nil {
		return err
	}
	if err := l.severs([]*Replica{r.away}, r.healthy, false); err != nil {
		return err
	}
	if err := r.away.unconnected(); err != nil {
		return err
	}
	failures := make(chan error, 2)
	var sides sync.WaitGroup
	sides.Go(func() { failures <- r.change(home, "home", keys, times, "apart") })
	sides.Go(func() { failures <- r.change(r.away, "away", keys, times, "apart") })
	sides.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			return err
		}
	}
	before, err := l.statuses()
	if err != nil {
		return err
	}
	in, out := l.carried(r.away)
	cpu := map[string]time.Duration{}
	for _, replica := range l.replicas {
		cpu[replica.name] = replica.cpu()
	}
	quiet := l.probe(2 * time.Millisecond)
	time.Sleep(time.Second)
	alone := quiet()
	meanwhile := l.probe(2 * time.Millisecond)
	healed := time.Now()
	if err := l.network.Heal(); err != nil {
		return err
	}
	if err := eventually(func() error { return l.covered(before) }); err != nil {
		return err
	}
	took := time.Since(healed).Round(time.Millisecond)
	puts := meanwhile()
	inAfter, outAfter := l.carried(r.away)
	if _, err := l.converged(); err != nil {
		return err
	}
	what := fmt.Sprintf("%d keys changed %d times at each side", keys, times)
	for _, replica := range l.replicas {
		l.report.note("%s: %s: %v of CPU; %v; before that: %v", what, replica.name, (replica.cpu() - cpu[replica.name]).Round(10*time.Millisecond),
			puts[replica.name], alone[replica.name])
		p99 := puts[replica.name].p99()
		l.report.check(p99 <= r.put, what+": a site's own puts go on, "+replica.name, fmt.Sprintf("p99 %v, %v may be", p99.Round(10*time.Microsecond), r.put))
	}
	l.report.check(took <= r.back, what+": back soon", fmt.Sprintf("%v, %v may be", took, r.back))
	if _, counted := l.network.(counts); !counted {
		return nil
	}
	changed := int64(keys) * int64(r.value+len(r.key("home", 0, 0)))
	links := int64(len(r.healthy))
	for _, way := range []struct {
		what         string
		bytes, links int64
	}{{"to", inAfter - in, 1}, {"from", outAfter - out, links}} {
		may := int64(r.bytes*float64(changed))*way.links + linkAllowance*links
		l.report.check(way.bytes <= may, fmt.Sprintf("%s: bytes %s the one that was away", what, way.what),
			fmt.Sprintf("%d, %.2f for each that changed, over %d links", way.bytes, float64(way.bytes)/float64(changed*way.links), way.links))
	}
	return nil
}

// statuses is what each replica has now.
func (l *Lab) statuses() (all []*Status, err error) {
	for _, r := range l.replicas {
		s, err := r.status()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// covered tells whether each replica has what all had then.
func (l *Lab) covered(before []*Status) error {
	for _, r := range l.replicas {
		s, err := r.status()
		if err != nil {
			return err
		}
		for _, had := range before {
			if !s.covers(had) {
				return fmt.Errorf("%s has %s and not yet %s", r.name, s.vector(), had.vector())
			}
		}
	}
	return nil
}

// carried is how many bytes went to a site, and from it, where the network counts that.
func (l *Lab) carried(site *Replica) (in, out int64) {
	network, counted := l.network.(counts)
	if !counted {
		return 0, 0
	}
	for _, r := range l.replicas {
		if r != site {
			in += network.Carried(r.place, site.place)
			out += network.Carried(site.place, r.place)
		}
	}
	return in, out
}
