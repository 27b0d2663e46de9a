package main

import (
	"flag"
	"fmt"
	"time"
)

// Month is a scenario: one site is away while very many writes happen elsewhere and at it. Its time is counted in writes,
// since nothing that a replica keeps may depend on either. It asserts bounds, and prints the figures that they are for.
type Month struct {
	writes   int     // overwrites of hot keys at the healthy sites; the one that is away does a quarter of that
	hot      int     // keys that all sites overwrite
	fields   int     // keys that each side changes, beside those
	value    int     // bytes of a hot value; of others twice that
	quota    int64   // MB
	rss      int64   // MB that a replica may take at any time
	bytes    float64 // of the links on coming back, for each byte of what changed
	back     time.Duration
	together int // hot keys that a transaction overwrites
	compact  int // own writes after which a site is compacted, as a kube-apiserver would

	lab     *Lab
	healthy []*Replica
	away    *Replica
	record  *Record
	gauges  *Gauges
}

// What a link may carry beside what changed: greetings, acknowledgements, a window that was on its way at the cut.
const linkAllowance = 256 << 10

func newMonth(flags *flag.FlagSet) *Month {
	m := &Month{}
	flags.IntVar(&m.writes, "writes", 200000, "month: overwrites of hot keys beside the site that is away")
	flags.IntVar(&m.hot, "hot", 100, "month: hot keys")
	flags.IntVar(&m.together, "together", 1, "month: hot keys that a transaction overwrites")
	flags.IntVar(&m.fields, "fields", 5000, "month: other keys that each side changes")
	flags.IntVar(&m.value, "value", 256, "month: bytes of a hot value; the others are twice as long")
	flags.Int64Var(&m.quota, "quota", 60, "month: --quota-backend-bytes of each replica, MB")
	flags.Int64Var(&m.rss, "rss", 120, "month: the most memory of a replica, MB")
	flags.Float64Var(&m.bytes, "bytes", 1.3, "month: the most bytes of the links on coming back, for each byte that changed")
	flags.DurationVar(&m.back, "back", 15*time.Second, "month: the longest that coming back may take")
	flags.IntVar(&m.compact, "compact", 10000, "month: a site is compacted after so many of its own writes")
	return m
}

// play is the whole scenario.
func (m *Month) play(l *Lab, size int) error {
	if size < 3 || m.hot%lanes != 0 || m.hot == 0 || m.compact <= 0 || m.together <= 0 || m.writes < 4*size*m.round() {
		return fmt.Errorf("three replicas at least, hot keys in %ds, and a few writes for each", lanes)
	}
	if perLane := m.hot / lanes; m.together > perLane {
		return fmt.Errorf("a transaction writes a key once, and each of %d lanes has %d of the %d keys", lanes, perLane, m.hot)
	}
	l.flags = []string{fmt.Sprintf("--quota-backend-bytes=%d", m.quota<<20), "--auto-compaction-mode=periodic", "--auto-compaction-retention=10s"}
	if err := l.begin(size); err != nil {
		return err
	}
	m.lab, m.away, m.healthy, m.record = l, l.replicas[size-1], l.replicas[:size-1], newRecord()
	if took, err := l.converged(); !l.report.check(err == nil, "the replicas meet", fmt.Sprint(took, why(err))) {
		return nil
	}
	if err := m.before(); err != nil {
		return err
	}
	m.gauges = l.gauges(l.replicas)
	defer m.gauges.finish()
	m.gauges.tell("all are there")
	if err := l.severs([]*Replica{m.away}, m.healthy, false); err != nil {
		return err
	}
	refused := m.absence()
	l.report.check(refused == nil, "every write is taken while one is away", why(refused))
	for _, r := range l.replicas {
		alarms, err := noSpace(r)
		what := fmt.Sprintf("%s: has room in its quota of %d MB", r.name, m.quota)
		l.report.check(err == nil && len(alarms) == 0, what, fmt.Sprint(alarms)+why(err))
	}
	if refused == nil && !stopped() {
		m.comingBack()
		m.equal()
	}
	m.gauges.finish()
	for _, r := range l.replicas {
		most := m.gauges.most[r.name]
		l.report.check(most <= m.rss<<20, r.name+": its memory stays bounded", fmt.Sprintf("%d MB at most, %d may be", most>>20, m.rss))
	}
	return nil
}

// before writes each field once. All sites see that and settle it.
func (m *Month) before() error {
	if err := m.fill(); err != nil {
		return err
	}
	_, err := m.lab.converged()
	return err
}

// comingBack heals, and measures until each has what all had at that moment. Clients write a little meanwhile.
func (m *Month) comingBack() {
	l := m.lab
	before, err := l.statuses()
	if err != nil {
		l.report.check(false, "all tell their status", err.Error())
		return
	}
	in, out := l.carried(m.away)
	cpu := map[string]time.Duration{}
	for _, r := range l.replicas {
		cpu[r.name] = r.cpu()
	}
	probes := l.probe(20 * time.Millisecond)
	healed := time.Now()
	if err := l.network.Heal(); err != nil {
		l.report.check(false, "the links are healed", err.Error())
		return
	}
	err = eventually(func() error { return l.covered(before) })
	took := time.Since(healed).Round(time.Millisecond)
	longest := probes()
	equal, settled := l.converged()
	for _, r := range l.replicas {
		l.report.note("%s: %v of CPU to come back, %s", r.name, (r.cpu() - cpu[r.name]).Round(10*time.Millisecond), longest[r.name])
	}
	m.gauges.tell(fmt.Sprintf("come back in %v, equal and settled %v later", took, equal))
	l.report.check(err == nil && took <= m.back, "coming back is quick", fmt.Sprintf("%v, %v may be%s", took, m.back, why(err)))
	l.report.check(settled == nil, "all are equal and settled", fmt.Sprint(equal, why(settled)))
	if _, counted := l.network.(counts); !counted {
		l.report.note("this network does not count the bytes of a link")
		return
	}
	inAfter, outAfter := l.carried(m.away)
	for _, r := range m.healthy {
		l.report.note("%s: %d bytes to the one that was away, %d from it, since the start", r.name,
			l.network.(counts).Carried(r.place, m.away.place), l.network.(counts).Carried(m.away.place, r.place))
	}
	for _, way := range []struct {
		what  string
		bytes int64
		sites []*Replica
		links int64
	}{
		{"to the one that was away", inAfter - in, m.healthy, 1},
		{"from the one that was away", outAfter - out, []*Replica{m.away}, int64(len(m.healthy))},
	} {
		keys, changed := m.record.changedAt(way.sites)
		may := int64(m.bytes*float64(changed))*way.links + linkAllowance*int64(len(m.healthy))
		l.report.check(way.bytes <= may, "coming back carries what changed, "+way.what, fmt.Sprintf(
			"%d bytes for %d keys of %d bytes over %d links, %d may be", way.bytes, keys, changed, way.links, may))
	}
}

// equal compares what all hold with what clients did.
func (m *Month) equal() {
	l := m.lab
	first := l.read(l.replicas[0])
	for _, r := range l.replicas {
		is := l.read(r)
		l.report.check(len(is.failed) == 0, r.name+": can be read", "", is.failed...)
		difference := first.all.difference(is.all)
		l.report.check(len(difference) == 0, r.name+": holds every key as all others", fmt.Sprintf("%d keys", len(is.all)), difference...)
		l.report.check(is.leases == first.leases, r.name+": has the same leases", "", is.leases, first.leases)
	}
	keys, wrong := m.record.against(first.values)
	l.report.check(len(wrong) == 0, "every key is as the last writes to it left it", fmt.Sprintf("%d keys", keys), limit(wrong, 12)...)
}
