// Package conformance holds what a user can observe (docs/behaviour.md) against every client language.
//
// # What it is
//
// Scenarios (scenarios/*.txt) say in plain lines what is done and what must come of it, and cite the cases that they
// show. A driver for each language turns such a line into calls of its client. The supervisor, a Go test, runs each
// scenario in each language, and those with two roles in every ordered pair of languages, and makes a table of
// case × language of what happened.
//
// # Its place in the data's way
//
//	scenarios/*.txt ─▶ supervisor ═ lines ═▶ driver_go  ─▶ clients/go     ─▶ ┐
//	                       │      ═ lines ═▶ driver_c   ─▶ clients/c      ─▶ ├ a broker process
//	                       ▼      ═ lines ═▶ driver_py  ─▶ clients/python ─▶ ┘
//	               docs/conformance.md
//
// Random histories (TestMetamorphic) are played by all languages under several configurations and by an oracle, a slow and
// obvious store; all must show the same bytes.
//
// # Invariants
//
//	F1 A cell of the table comes from scenarios or named tests that ran, each with an assertion; what did not run is
//	   missing, never left out.
//	F2 A driver decides nothing: it makes the calls of a line and reports values or the error. Expectations stand in
//	   the scenario alone.
//	F3 Scenarios that share a broker share no name: the supervisor gives attributes and paths a prefix of their own.
//	   Who seals everything runs on a broker of its own.
//	F4 "later" is earned: the language has no such call yet, or the call answered NOT_SUPPORTED, in a case that
//	   docs/behaviour.md does not mark as wholly "now". "n/a": the language does not offer it, with the reason.
//
// # When a peer dies or lies
//
// A driver that ends or says nothing for too long fails its scenario and is started anew.
//
// # Not here
//
// Crashes and load (integration), what only one language has (its own tests; the table may count them by name).
//
// # Scenario lines
//
//	case 70 76 title            begins a scenario that shows cases 70 and 76
//	fresh [arguments]           runs it on a broker of its own, with these arguments of `callboard serve`
//	only c python "reason"      other languages are n/a, for this reason
//	later                       may be refused as not built, though the case is marked "now": shows a part that is not
//	never "reason"              no language can show it, for this reason: n/a in all
//	pytest test_dtype.py::name  counts a test of clients/python/tests, by its result
//	gotest ./clients/go TestX   counts a Go test, by its result
//	ctest test_dlpack a_name    counts a RUN of a program in clients/c/tests, by its result
//	A verb … -> expectations    role A does something; "~>" repeats it until the expectations hold, for two seconds
//	A start verb …              as A verb …, without waiting for the answer, which A finish gives
//	A kill                      ends role A's process as a crash does
//	A freeze, A thaw            stops all threads of the broker, and lets them go on
//	A crash, A restart          kills the broker of a fresh scenario, and starts it again (restart --fresh: with this
//	                            argument of `callboard serve`)
//	A sleep, A wake             stops role A's process, and lets it go on
//	A silent                    role A's process has written nothing to standard error
//
// The path /p0..9 is ten paths. $clock is a time shortly after the scenario's first line, in ms since 1970.
//
// Values are [1 2 3], raw bits [0x7fc00001], strings "text"; a write with several lists has one tensor per prim,
// and so has a group of kind array ("array", "map … array sizes=2,0", "fill m.0 row=1 …").
// The filters of find are has:x in:/a,/b in:x:1,2 prefix:/a contains:x:a,b lt:x:1 le: gt: ge:, only:x,y for what is
// reported, and raw:number:name:values for an operator by its number.
// Expectations, all of which must hold:
//
//	ok                          no error
//	FLOOR_VIOLATION|…  ~ "re"   one of these errors; its text matches. "refused" is INVALID_ARGUMENT, or Python's
//	                            ValueError or TypeError
//	at=call at=wait at=fetch    where the error came from: the call, waiting for it, fetching what a read gives
//	[1 2 3]                     the values of the group, one prim after the other, through its row map
//	x[1 2 3]                    of attribute x's group; x#1 is the second group of x
//	none                        no group
//	dies                        the call ended the role's process
//	distinct                    no field of the answer is empty or equal to another
//	shape=3,4 x.rows>=2 …       a field of the answer or of a group: = != > >= < <=, and ~ for a pattern
//	epoch>$e  let:e=epoch       compares with a field that was kept; keeps one
package conformance
