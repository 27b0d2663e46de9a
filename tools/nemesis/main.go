// Nemesis proves replication with real processes. See README.md.
package main

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"
)

// interrupted is closed when the program is to end early.
var interrupted = make(chan struct{})

func stopped() bool {
	select {
	case <-interrupted:
		return true
	default:
		return false
	}
}

func main() {
	size := flag.Int("n", 3, "how many replicas (the scenario single has one)")
	length := flag.Duration("t", time.Minute, "how long troubles go on; each comes once before any comes again")
	seed := flag.Int64("seed", time.Now().UnixNano()%1000000, "what troubles, where and when; the load, but not its timing")
	netns := flag.Bool("netns", false, "a network namespace for each replica (root only), instead of relays on loopback")
	only := flag.String("only", "", "troubles to choose from, by name with commas (default all but leases, wipe and restore): "+allNames())
	wipes := flag.Bool("wipe", false, "wipe data dirs and put old copies back, too; what only they had may be lost then")
	keep := flag.Bool("k", false, "keep data dirs and logs (they are kept when something fails, too)")
	pace := flag.Duration("pace", 8*time.Millisecond, "mean pause of a client between operations at 3 replicas")
	scenario := flag.String("scenario", "troubles", "what is played: troubles, month (a site is away for very many writes), return (what coming back costs) or single (one replica, or an etcd)")
	month, back := newMonth(flag.CommandLine), newReturn(flag.CommandLine)
	cache, _ := os.UserCacheDir()
	peers := os.Getenv("EDDY_PEERS")
	if peers == "" {
		peers = filepath.Join(cache, "eddy", "peers")
	}
	etcdctl := flag.String("etcdctl", filepath.Join(peers, "bin", "etcdctl"), "where etcdctl is")
	args := os.Args[1:]
	var eddy string
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		eddy, args = args[0], args[1:]
	}
	flag.CommandLine.Parse(args)
	if eddy == "" && flag.NArg() == 1 {
		eddy = flag.Arg(0)
	}
	usage := func(why string) {
		fmt.Fprintln(os.Stderr, "tools/nemesis/run EDDY [flags]: "+why)
		flag.PrintDefaults()
		os.Exit(2)
	}
	eddy, err := filepath.Abs(eddy)
	if info, e := os.Stat(eddy); err != nil || e != nil || info.IsDir() {
		usage("name the binary")
	}
	if *size < 2 {
		usage("two replicas at least")
	}
	if _, err := os.Stat(*etcdctl); err != nil {
		usage("there is no " + *etcdctl + " (tools/peers/build etcd makes it)")
	}
	choice, err := choose(*only, *wipes)
	if err != nil {
		usage(err.Error())
	}
	play := map[string]func(*Lab) error{
		"troubles": func(l *Lab) error { return l.play(*size, *length, choice) },
		"single":   func(l *Lab) error { return single(l, *length) },
		"month":    func(l *Lab) error { return month.play(l, *size) },
		"return":   func(l *Lab) error { return back.play(l, *size) },
	}[*scenario]
	if play == nil {
		usage("there is no scenario " + *scenario)
	}
	l := &Lab{binary: eddy, etcdctl: *etcdctl, seed: *seed, pace: max(*pace, time.Millisecond) * time.Duration(max(*size, 3)) / 3}
	for _, t := range choice {
		l.wiped = l.wiped || losesDisks[t.name]
	}
	os.Exit(run(l, *scenario, *netns, *keep, play))
}

func allNames() string {
	var all []string
	for _, t := range troubles {
		all = append(all, t.name)
	}
	return strings.Join(all, ",")
}

func choose(only string, wipes bool) ([]Trouble, error) {
	var choice []Trouble
	wanted := map[string]bool{}
	all := only == ""
	for _, name := range strings.Split(only, ",") {
		if name != "" {
			wanted[name] = true
		}
	}
	for _, t := range troubles {
		if t.name == "clock" && libfaketime() == "" {
			if wanted[t.name] {
				return nil, fmt.Errorf("clock needs libfaketime (Debian's package faketime)")
			}
			continue
		}
		if wanted[t.name] || all && !losesDisks[t.name] && !takesLong[t.name] || losesDisks[t.name] && wipes {
			choice = append(choice, t)
		}
		delete(wanted, t.name)
	}
	for name := range wanted {
		return nil, fmt.Errorf("there is no %q", name)
	}
	return choice, nil
}

func run(l *Lab, what string, netns, keep bool, play func(*Lab) error) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		close(interrupted)
	}()
	dir, err := os.MkdirTemp("", "eddy-nemesis-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("%s, seed %d, %s\n", what, l.seed, dir)
	report := &Report{to: os.Stdout}
	l.dir, l.random, l.report, l.history = dir, rand.New(rand.NewSource(l.seed)), report, &History{}
	l.stop, l.cuts = make(chan struct{}), map[int][][2]int64{}
	if netns {
		l.network, err = newSpaces(l.seed)
	} else {
		l.network = newRelays()
	}
	if err == nil {
		err = play(l)
	}
	if err != nil {
		report.check(false, "the run", err.Error())
	}
	if stopped() {
		report.check(false, "the run", "interrupted")
	}
	if l.network != nil {
		l.end()
	}
	if report.failed > 0 || keep {
		fmt.Printf("data dirs and logs: %s\n", dir)
	} else {
		os.RemoveAll(dir)
	}
	fmt.Printf("seed %d\n%d passed, %d failed\n", l.seed, report.passed, report.failed)
	if report.failed > 0 || report.passed == 0 {
		return 1
	}
	return 0
}

// play starts the cluster and the load, makes trouble, and checks everything.
func (l *Lab) play(size int, length time.Duration, choice []Trouble) error {
	if err := l.begin(size); err != nil {
		return err
	}
	if took, err := l.converged(); !l.report.check(err == nil, "the replicas meet", fmt.Sprint(took, why(err))) {
		return nil
	}
	for _, r := range l.replicas {
		if err := l.populate(r); err != nil {
			return err
		}
	}
	l.wait(time.Second)
	l.trouble(length, choice)
	close(l.stop)
	l.clients.Wait()
	if stopped() {
		return nil
	}
	l.finalReads()
	for _, w := range l.watches {
		if err := w.finish(); err != nil {
			l.report.check(false, w.replica.name+": its watch tells everything", err.Error())
		}
	}
	took, err := l.converged()
	l.report.check(err == nil, "at the end all replicas are equal and have nothing open", fmt.Sprint(took, why(err)))
	ops := l.history.all()
	l.consistent(ops)
	l.linearizable(ops)
	l.compare(ops)
	l.latencies(ops)
	return nil
}

// trouble makes one after the other, sometimes two at once, until the time is over and each was there once.
func (l *Lab) trouble(length time.Duration, choice []Trouble) {
	end := time.Now().Add(length)
	var order []int
	for round := 0; !stopped() && time.Now().Before(end); round++ {
		if len(order) == 0 {
			order = l.random.Perm(len(choice))
		}
		t := choice[order[0]]
		order = order[1:]
		story := &Story{}
		hold := time.Duration(500+l.random.Intn(2500)) * time.Millisecond
		begin := len(l.history.all())
		err := t.do(l, story, hold)
		if e := l.network.Heal(); err == nil {
			err = e
		}
		l.wait(300 * time.Millisecond)
		if stopped() {
			return
		}
		var took time.Duration
		if err == nil {
			err = l.quietly(func() (e error) {
				took, e = l.converged()
				return e
			})
		}
		what := fmt.Sprintf("%2d %-8s %s", round+1, t.name, strings.Join(story.words, ", "))
		detail := fmt.Sprintf("%d operations, all equal after %v%s", len(l.history.all())-begin, took, why(err))
		if !l.report.check(err == nil, what, detail) {
			return // Whatever follows would only repeat it.
		}
	}
}

func why(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// finalReads read each private key once more where it was written, as part of its history; after a disk was lost only those
// that came later.
func (l *Lab) finalReads() {
	keys := map[string]int{}
	for _, op := range l.history.all() {
		if strings.HasPrefix(op.Key, "private/") && !l.replicas[op.Replica].isGone() && l.lasting(op) {
			keys[op.Key] = op.Replica
		}
	}
	clients := map[int]*Client{}
	for key, place := range keys {
		if clients[place] == nil {
			etcd, err := l.connect(l.replicas[place])
			if err != nil {
				continue
			}
			defer etcd.Close()
			clients[place] = &Client{lab: l, replica: l.replicas[place], name: "last", etcd: etcd, seen: map[string]int64{}}
		}
		clients[place].do(Op{Kind: Get, Key: key})
	}
}

// latencies tells how long puts took at replicas that were cut off, and at others.
func (l *Lab) latencies(ops []Op) {
	var off, on []float64
	for _, op := range ops {
		if op.Kind != Put || op.Outcome != OK || op.Client == "etcdctl" || l.replicas[op.Replica].wasDown(op.Call, op.Return) {
			continue
		}
		ms, cut := float64(op.Return-op.Call)/1e6, false
		for _, interval := range l.cuts[op.Replica] {
			cut = cut || op.Call >= interval[0] && op.Return <= interval[1]
		}
		if cut {
			off = append(off, ms)
		} else {
			on = append(on, ms)
		}
	}
	tell := func(all []float64) string {
		if len(all) == 0 {
			return "none"
		}
		sort.Float64s(all)
		return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, most %.1f ms of %d", all[len(all)/2], all[len(all)*99/100], all[len(all)-1], len(all))
	}
	l.report.note("puts while cut off: %s; otherwise: %s", tell(off), tell(on))
}
