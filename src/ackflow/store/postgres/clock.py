"""The clock of the database server."""

from ...clock import FAR, Bearing, SystemClock


class ServerClock(SystemClock):
    """The clock of the database server, as last read, advanced by the local monotonic clock."""

    _asked = False

    def follow(self, now: int) -> int:
        """Set the clock to the server's time, and return the time that applies.

        Steps of the server's clock are followed; a step of more than a day only after it has lasted
        for five minutes.
        """
        steady, bearing = self._steady(), self._course.bearing
        offset = now * 1000 - steady
        if self._asked and abs(offset - bearing.offset) > FAR:
            bearing = bearing.towards(now * 1000, steady)
        else:
            bearing = Bearing(offset, steady)
        self._asked = True
        self._steer(bearing)
        return now if bearing.offset == offset else self.now()

    def _look(self, steady: int) -> None:
        pass  # the wall clock of this machine is not used
