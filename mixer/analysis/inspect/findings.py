"""What of a run's data will hurt: a sentence each, with the figure that says so."""

from mixer.analysis.inspect import run_findings, stream_findings
from mixer.analysis.inspect.finding import Finding
from mixer.analysis.inspect.inspection import Inspection
from mixer.analysis.inspect.overlap_findings import overlap_findings


def findings_of(inspection: Inspection) -> list[Finding]:
    """Finds what of a run's data will hurt.

    Args:
        inspection: What was seen.

    Returns:
        The findings: those of single streams, of samples that come more than once, and of the run as a whole.
    """
    return [
        *(finding for one in inspection.streams for look in stream_findings.LOOKS for finding in look(inspection, one)),
        *overlap_findings(inspection.overlaps),
        *(finding for look in run_findings.LOOKS for finding in look(inspection)),
    ]
